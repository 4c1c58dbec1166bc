"""One training from its recipe to its end: the loop's surroundings that are the same on every engine."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from math import isfinite
from typing import Any

from oddlot.checkpoint.format import Snapshot
from oddlot.checkpoint.writer import LONG_WRITE_SECONDS, BackgroundSaver
from oddlot.core.conductor import Conductor
from oddlot.core.errors import BadSamples, CheckpointError, JobError
from oddlot.core.events import Evaluated, Resumed, Stopped, Struck
from oddlot.core.records import Record
from oddlot.core.serialization import type_of
from oddlot.core.user_warnings import warn
from oddlot.engines.base import Engine, Numbers, Open
from oddlot.engines.host import Adviser, Host, Observer
from oddlot.engines.loop import drive
from oddlot.engines.payloads import users_code
from oddlot.engines.simulated.update_servers import served
from oddlot.faults.injector import Disturbed
from oddlot.faults.preemption import Preempted
from oddlot.history.audit import prove_log
from oddlot.history.log import Log, surviving
from oddlot.history.metrics import Tally, resumed_after, take_into_account
from oddlot.history.outcome import FAILED, in_short
from oddlot.history.run_folder import ABOUT, EFFECTIVE_BATCH, ON, SUMMARY, RunFolder
from oddlot.run.goals import TIME_FIGURES, Reminder
from oddlot.run.result import INTERRUPTED, Run
from oddlot.run.resume import Past, read_past
from oddlot.run.short_lives import ShortLives
from oddlot.run.signals import StopWish
from oddlot.run.spec import Recipe
from oddlot.run.user_observers import SafeObserver
from oddlot.run.warnings import WarnOfLoss, WarnOfMissing, warn_of_hung, warn_of_not_measured
from oddlot.timing.round_estimator import RoundTimes
from oddlot.train.flat_buffer import Layout
from oddlot.train.job import made
from oddlot.train.seeding import kept_chance, seed_all
from oddlot.train.store import Store
from oddlot.train.tensor_checks import warn_of_extra_state

HUNG_MEASURE_SECONDS = 600.0
"""that a run whose goal was one of time or money waits for its final metrics"""
LONG_MEASURE_SECONDS = 60.0
"""after which it is told what the run waits for"""
HUNG_WRITE_SECONDS = 600.0
"""that a run waits, at its begin and its end, for a checkpoint that is being written"""
HURRY_SECONDS = 2.0
"""for the checkpoint that is being written when a second Ctrl-C ends the run"""
LARGE_NORM = 1e18
"""of weights, above which a training diverges"""
MOST_ROWS = 64
"""of samples that are named in an error"""
logger = logging.getLogger(__name__)


class Training:
    """A host with its engine, log, figures and checkpoints: what `fit` sets up and drives.

    What is opened here is put on `closing`.
    """

    def __init__(
        self,
        recipe: Recipe,
        closing: ExitStack,
        open_engine: Open,
        folder: RunFolder | None = None,
        resume: bool = False,
    ) -> None:
        self.recipe, self.folder = recipe, folder
        self.tally = Tally(recipe.samples)
        self.records: list[Record] = []
        self.evaluation = Reminder(recipe.settings.evaluate_every)
        self.checkpoint = Reminder(recipe.settings.checkpoint_every)
        self.evaluation_due = False
        self.warned_of_size = False
        self.may_not_wait = False
        """the goal that was met is one of time or money"""
        self.met_at: int | None = None
        """the version whose figures met the goal"""
        self.stop = StopWish()
        self.stopped = ""
        """why an observer has stopped the run"""
        seed_all(recipe.settings.seed)
        with users_code("the hub"):
            self.model = made(recipe.job)
        warn_of_extra_state(self.model)
        self.layout = Layout.from_module(self.model, recipe.job.as_buffers)
        self.identity = recipe.identity(self.layout)
        past = None
        if folder is not None and resume:
            past = read_past(folder, self.identity, self.layout, type_of(recipe.strategy))
        conductor = past.conductor if past else recipe.conductor()
        # The clock goes on where it stopped: the time of lost work was real.
        now = max(conductor.now, past.log[-1].now if past and past.log else 0.0)
        self.opened = open_engine(self._numbers(), now, past.nodes if past else frozenset())
        self.log: Log | None = None
        self.store = self._store(past)
        measured = {"loss", *recipe.job.metrics}
        self.short_lives = ShortLives(self.tally, recipe.strategy, recipe.job.batch, recipe.shards)
        observers: list[Observer] = [
            self.tally,
            WarnOfMissing(measured),
            WarnOfLoss(),
            warn_of_hung,
            self.short_lives,
        ]
        self.engine = self._with_chaos(conductor, past)
        numbers = self.opened.shadow or self.store
        self.host = Host(conductor, numbers, self.engine, observers, _advisers(conductor))
        self.saver: BackgroundSaver | None = None
        closing.push(self._close_saver)
        self._open_log(past, closing, resume)

    def run(self) -> Run:
        """Train until the goal is reached, measure the final version, save."""
        try:
            with self.stop.heard(), self._rows_named():
                self._await_first_checkpoint()
                ended = drive(self.host, self.engine, self._ended, lambda: self.recipe.goal.due(self.tally))
                self._check_learned(ended)
                ended = self._measure_final(ended)
                if (now := self.engine.now) > self.host.conductor.now:
                    self.host.handle(Stopped(), now)
            self.store.weights.scatter(self.model)
            self.model.eval()
            summary = self._summary(ended)
            self._save_end(summary)
            ended = INTERRUPTED if self.stop.signal else ended
            self.short_lives.warn()
        except JobError as error:
            self._save_failed(error)
            raise
        path = self.folder.path if self.folder else None
        return Run(self.model, summary, self.tally.history, ended, path, self.records)

    def observe(self, observers: Sequence[Observer]) -> None:
        """Show them what this run had done before it was resumed, then everything as it happens.

        `begin(recipe)`, if an observer has that, is called first. One that has a method `replay` is shown the past with
        that; `stopping()` tells of a Ctrl-C.
        """
        for observer in observers:
            safe = SafeObserver(observer, self._stop)
            safe.begin(self.recipe)
            for record in self.earlier:
                safe.replay(record)
            self.host.observers.append(safe)

    def _stop(self, why: str) -> None:
        self.stopped = self.stopped or why

    # --- setting up ----------------------------------------------------------------------------

    def _with_chaos(self, conductor: Conductor, past: Past | None) -> Engine | Disturbed:
        """The engine, and what is to happen to it on purpose as long as the run trains."""
        engine = served(self.opened, self.opened.shadow or self.store)
        chaos = self.recipe.settings.chaos
        if chaos is None:
            return engine
        if chaos.capacity is not None:
            engine = Preempted(engine, chaos.capacity, self.recipe.on.names, chaos.seed)
        log, tally = past.log if past else [], Tally(self.recipe.samples)
        if self.folder is not None:
            take_into_account(tally, surviving(log), self.folder.log)
        struck = [(r.now, r.event) for r in log if isinstance(r.event, Struck)]
        left = [node for node, row in tally.workers.items() if not row.gone]
        life = sum(isinstance(record.event, Resumed) for record in log) + (past is not None)
        return Disturbed(engine, chaos, lambda: conductor.version, self._flush, struck, left, life)

    def _settings_anew(self) -> dict[str, int | None]:
        """What of the books' settings a resumed run may change."""
        how = self.recipe.settings
        return {
            "in_flight": self.recipe.on.in_flight,
            "epochs": self.recipe.goal.epochs,
            "epoch_barrier": self.recipe.epoch_barrier,
            "skip_bad": how.skip_bad,
        }

    def _numbers(self) -> Numbers:
        job, how = self.recipe.job, self.recipe.settings
        constants = self.layout.constants(self.model)
        codec = self.recipe.codec
        return Numbers(job, self.layout, constants, codec, how.seed, self.recipe.cuts, how.keep_shards)

    def _store(self, past: Past | None) -> Store:
        weights = self.opened.pool.take()
        weights.gather(self.model)
        store = Store(
            weights,
            self.recipe.rule,
            self.opened.pool,
            schedule=self.recipe.schedule,
            max_update_ratio=self.recipe.settings.max_update_ratio,
        )
        if past is not None:
            with past.readable():
                store.load_state(past.tensors)
                for version in self._kept(past.conductor):
                    store.acquire(version)
        return store

    def _kept(self, conductor: Conductor) -> list[int]:
        """The versions that the strategy holds, each as often as it does; none of a model that is not computed."""
        kept = conductor.kept if self.opened.shadow is None else {}
        return [int(version) for version, holds in kept.items() for _ in range(holds)]

    def _open_log(self, past: Past | None, closing: ExitStack, resume: bool) -> None:
        """Begin the log, or go on with it: what came after the checkpoint is lost work."""
        self.earlier: list[Record] = []
        if self.folder is None:
            self.host.observers.append(self.records.append)
            return
        about = dict(self.recipe.settings.about) or (self.folder.about if resume else {})
        if past is None:
            self.folder.make_room()
        else:
            event = self._look_back(past, self.folder)
            self.folder.reopen()
        batch = self.recipe.effective_batch
        told = {ON: type(self.recipe.on).__name__, ABOUT: about} | (
            {EFFECTIVE_BATCH: str(batch)} if batch else {}
        )
        self.folder.begin({**self.identity, **told})
        self.saver = self._saver(self.folder, past)
        self.log = Log(self.folder.log, self.host.conductor, len(past.log) if past else None)
        closing.callback(self.log.close)
        self.host.observers.append(self.log)
        if past is not None:
            self.host.observers.append(self.earlier.append)
            # Perhaps a round ends with it, and what that has changed is told too.
            with past.readable():
                self.host.handle(event, self.opened.engine.now)
            self.host.observers.remove(self.earlier.append)
        self._checkpoint()

    def _look_back(self, past: Past, folder: RunFolder) -> Resumed:
        """Count what holds of the past, and what was lost. CheckpointError: the log is no history."""
        self.earlier = surviving(past.log, past.checkpoint.records)
        lost = surviving(past.log)[len(self.earlier) :]
        take_into_account(self.tally, self.earlier, folder.log)
        proof = prove_log(folder.log, self.earlier, self.recipe.samples)
        if proof.faults:
            told = f"{folder.log} is damaged: {proof}. Restore the file from a copy"
            raise CheckpointError(told, "damaged_file", path=str(folder.log))
        event = resumed_after(past.checkpoint.records, self.tally, lost, folder.log)
        return replace(event, settings=self._settings_anew())

    # --- under way -----------------------------------------------------------------------------

    def _ended(self) -> str:
        """Why the run ends now; empty to go on. Also keeps the rhythms of evaluation and checkpoints."""
        self.tally.advance(self.opened.engine.now)
        if self.stop.signal:
            for observer in self.host.observers:
                getattr(observer, "stopping", lambda: None)()
            return INTERRUPTED
        if self.stopped:
            return self.stopped
        if self.log is not None:
            self.log.keep_up(self.tally.seconds)
        if met := self.recipe.goal.reached(self.tally):
            self.met_at = self.tally.version_of(met.figure)
            self.may_not_wait = met.figure in TIME_FIGURES
            return str(met)
        if self.host.conductor.done:
            return self.recipe.goal.by_epochs
        self._evaluate_when_due()
        if self.saver is not None and self.checkpoint.due(self.tally):
            self._checkpoint()
        return ""

    def _evaluate_when_due(self) -> None:
        """One evaluation at a time; one that falls due meanwhile takes the newest version afterwards."""
        if self.recipe.job.evaluation is None or self.opened.shadow is not None:
            return
        self.evaluation_due = self.evaluation.due(self.tally) or self.evaluation_due
        if self.evaluation_due and not self.host.evaluating:
            self.evaluation_due = False
            self.host.evaluate(self.host.conductor.version)

    def _check_learned(self, ended: str) -> None:
        """A run whose weights have overflown, or whose every sample was skipped, has not done what was asked for."""
        self._check_finite()
        skipped = self.host.conductor.ledger.skipped
        if skipped and not self.tally.versions and ended != INTERRUPTED:
            raise JobError(
                f"the model has learned nothing: all {skipped:,} samples gave bad numbers and were skipped, the last "
                f"ones since {self.tally.last_refusal}. Lower the learning rate, or mend the samples",
                "nothing_learned",
                samples=skipped,
            )

    def _check_finite(self) -> None:
        """Bad updates are refused, but sums of large ones can overflow: such weights are neither saved nor returned."""
        if self.opened.shadow is not None:
            return
        norm = self.store.norm
        if not isfinite(norm):
            if self.saver is not None:
                self.saver.wait()  # the one that is being written is sound too
            newest = -1 if self.saver is None else self.saver.newest
            saved = f"; the checkpoint of version {newest:,} is sound" if newest >= 0 else ""
            raise JobError(
                f"the weights of version {self.store.version} are not finite: the training has diverged. Lower the "
                f"learning rate{saved}",
                "weights_not_finite",
                version=self.store.version,
                newest=newest,
            )
        if norm > LARGE_NORM and not self.warned_of_size:
            self.warned_of_size = True
            warn(
                f"the norm of the weights is {norm:.2g}: the training diverges. Lower the learning rate",
                "weights_too_large",
                norm=norm,
            )

    def _summary(self, ended: str) -> dict[str, Any]:
        """The closing figures."""
        self.tally.finish()
        return self.tally.summary() | {
            "ended": ended,
            "ended_version": self._version_told if self.met_at is None else self.met_at,
            "records": self.log.records if self.log else len(self.records),
            "run_dir": str(self.folder.path) if self.folder else None,
            EFFECTIVE_BATCH: self.recipe.effective_batch and str(self.recipe.effective_batch),
        }

    @property
    def _version_told(self) -> int:
        """The one whose figures are told: the newest or, of a run that has failed, the newest that was measured."""
        measured = self.tally.evaluated_version
        return self.tally.versions if measured < 0 else measured

    def _measure_final(self, ended: str) -> str:
        """Wait for the final version's metrics, and return why the run ended.

        Whatever else comes in is too late to count. A run that is asked to stop saves at once and does not wait.
        """
        final = self.host.conductor.version
        if ended == INTERRUPTED or self.recipe.job.evaluation is None or self.opened.shadow is not None:
            return ended
        if self.tally.evaluated_version != final:
            self.host.evaluate(final)
        engine, told = self.opened.engine, False
        began = engine.now
        while self.tally.evaluated_version != final:
            if self.stop.signal:
                return INTERRUPTED
            if self.may_not_wait and engine.now - began >= HUNG_MEASURE_SECONDS:
                warn_of_not_measured(final, HUNG_MEASURE_SECONDS)
                return ended
            message = engine.next(engine.now + LONG_MEASURE_SECONDS)  # or sooner, with nothing
            if message is None and not told and engine.now - began >= LONG_MEASURE_SECONDS:
                told = True
                logger.info(
                    "the final version has been measured for %g s: the run waits for that. If its process was stopped, "
                    "continue it or kill it: then another one measures",
                    LONG_MEASURE_SECONDS,
                )
            if isinstance(message, Evaluated):
                self.host.handle(message, engine.now)
        return ended

    @contextmanager
    def _rows_named(self) -> Iterator[None]:
        """Samples that cannot be used are told by their index in the data, which the books do not know."""
        try:
            yield
        except BadSamples as bad:
            rows = self.recipe.rows(bad.spans)
            more = f" and {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""
            named = ", ".join(map(str, rows[:MOST_ROWS]))
            told = f"some samples {bad.why}\nThey are among data[{named}{more}]"
            raise JobError(told, bad.code, **bad.fields, rows=rows) from bad

    # --- saving --------------------------------------------------------------------------------

    def _saver(self, folder: RunFolder, past: Past | None) -> BackgroundSaver:
        keep = self.recipe.settings.keep_checkpoints
        begun_from, there = (past.checkpoint, past.there) if past else (None, ())
        return BackgroundSaver(folder.storage, folder.log, keep, folder.is_elsewhere, begun_from, there)

    def _checkpoint(self) -> None:
        """Have the state of this moment written in the background; the log up to here is in its file first.

        Nothing is done while another one is being written.
        """
        if self.saver is None or self.log is None:
            return
        self.saver.warn_if_hung()
        for problem in self.saver.problems():
            warn(str(problem), problem.code, **problem.fields)
        self._check_finite()
        self.log.check()
        conductor = self.host.conductor
        if self.folder is not None and self.saver.newest > self.tally.resumed_at:
            self.folder.forget_model()
        self.saver.save(
            Snapshot(
                conductor.version,
                self.log.records,
                self.layout.fingerprint,
                conductor.to_plain(),
                self.layout.to_json(),
                self.store.state_tensors(self._kept(conductor)),
            )
        )

    def _await_first_checkpoint(self) -> None:
        """A run that could not be gone on with must not begin; workers start meanwhile. JobError: no room for it."""
        if self.saver is not None:
            if not self.saver.wait(HUNG_WRITE_SECONDS):
                raise self.saver.hung
            for problem in self.saver.problems():
                told = str(problem).removesuffix("; the run goes on")
                raise problem.retold(f"{told}: make room, then resume the run")

    def _save_failed(self, error: JobError) -> None:
        """Save what was learned until then, and how the run ended, if there is room for it."""
        with suppress(JobError, OSError):
            if self.saver is not None and self.tally.versions and self.host.settled:
                self.saver.wait()
                self._checkpoint()
                self.saver.wait()
        with suppress(JobError):
            self._flush()
            if self.folder is not None and self.log is not None:
                self.folder.write(SUMMARY, self._summary(f"{FAILED}{in_short(error)}"))

    def _flush(self) -> None:
        if self.log is not None:
            self.log.flush()

    def _save_end(self, summary: dict[str, Any]) -> None:
        if self.folder is None or self.saver is None:
            return
        written = False
        try:
            written = self.saver.wait(LONG_WRITE_SECONDS if self.stop.signal else HUNG_WRITE_SECONDS)
        except KeyboardInterrupt:  # the model is not lost where the place of checkpoints hangs
            self.stop.interrupt()
        if written:
            self._checkpoint()
        self.folder.write_model(self.model)
        self.folder.write(SUMMARY, summary)
        if written:
            self.saver.wait(HUNG_WRITE_SECONDS)
        for problem in self.saver.problems():
            warn(
                f"{str(problem).removesuffix('; the run goes on')}. The model is saved, but the newest checkpoint, "
                f"from which the run would go on, is of version {self.saver.newest:,}",
                problem.code,
                **problem.fields,
                newest=self.saver.newest,
            )

    def _close_saver(self, kind: type[BaseException] | None, *_: object) -> None:
        patience = HURRY_SECONDS if kind is KeyboardInterrupt or self.stop.signal else HUNG_WRITE_SECONDS
        for problem in self.saver.close(patience) if self.saver is not None else ():
            warn(str(problem).removesuffix("; the run goes on"), problem.code, **problem.fields)


def _advisers(conductor: Conductor) -> list[Adviser]:
    """Who computes what the strategy wants to be told."""
    loads = conductor.strategy.traits(conductor.batch).measured_loads
    return [RoundTimes(loads)] if loads else []


@contextmanager
def prepared(recipe: Recipe, folder: RunFolder | None = None, resume: bool = False) -> Iterator[Training]:
    """A training that is ready to run, and closed afterwards."""
    if folder is not None and resume:
        recipe = recipe.resuming(folder.settings().get("shards"))
    with ExitStack() as closing:
        open_engine = recipe.on.begin(closing)
        closing.enter_context(kept_chance())
        yield Training(recipe, closing, open_engine, folder, resume)
