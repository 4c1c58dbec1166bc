"""A training run with a hub, on any engine: `prepared` sets it up, and `Training` runs it."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from oddlot.checkpoint.storage import BEST
from oddlot.core.conductor import Conductor
from oddlot.core.events import Evaluated, Stopped
from oddlot.core.records import HUB, Record
from oddlot.core.support.errors import JobError
from oddlot.core.tasks import NodeId
from oddlot.data.seeding import preserve_random_state
from oddlot.engines.base import Open
from oddlot.engines.host import Adviser, Host, Observer
from oddlot.engines.loop import drive
from oddlot.engines.simulated.update_servers import served
from oddlot.faults.injector import FaultInjector
from oddlot.faults.plan import Chaos
from oddlot.faults.preemption import PreemptionInjector
from oddlot.history.log import surviving
from oddlot.history.metrics import Tally, take_into_account
from oddlot.history.run_folder import EFFECTIVE_BATCH, RunFolder
from oddlot.history.run_outcome import FAILED, in_short
from oddlot.history.segments import STAGE
from oddlot.run.control import RunControl
from oddlot.run.recipe import Recipe, rows_named
from oddlot.run.remaining_work import with_work
from oddlot.run.result import INTERRUPTED, Run
from oddlot.run.resume import SavedRun, read_past
from oddlot.run.saving import Saving
from oddlot.run.segments import check_order, load_state
from oddlot.run.session import Session
from oddlot.run.waiting_workers import WaitingWorkers
from oddlot.run.watchdogs import Divergence, ShortLives, check_learned, warn_of_kept_optimizer
from oddlot.timing.round_estimator import RoundEstimator

if TYPE_CHECKING:
    from oddlot.engines.base import Engine, Opened


def engine_with_faults(
    opened: "Opened",
    numbers: Any,
    conductor: Conductor,
    chaos: Chaos | None = None,
    names: Sequence[str] = (),
    past: Sequence[Record] | None = None,
    left: Collection[NodeId] = (),
    flush: Callable[[], None] = lambda: None,
) -> "Engine | FaultInjector":
    """Return the engine, wrapped to inject the faults of `chaos` during the run.

    `numbers` is the host's store. A fault in `past`, the complete log of a resumed run, is not injected again. `left`
    are the workers at the end of that log. `flush` is called before the hub is killed.
    """
    engine = served(opened, numbers)
    if chaos is None:
        return engine
    faults = opened.faults
    assert faults is not None, "the engine's config declares that it injects faults"
    if chaos.capacity is not None:
        engine = PreemptionInjector(engine, faults, chaos.capacity, names, chaos.seed)
    return FaultInjector(engine, faults, chaos, lambda: conductor.version, flush, past, left)


def host_of(conductor: Conductor, numbers: Any, engine: Any, observers: list[Observer] | None = None) -> Host:
    """Return a host with these observers, and with an adviser if the strategy needs estimated round times."""
    loads = conductor.strategy.traits(conductor.batch).measured_loads
    advisers: list[Adviser] = [RoundEstimator(loads)] if loads else []
    return Host(conductor, numbers, engine, [] if observers is None else observers, advisers)


LONG_MEASURE_SECONDS = 60.0
"""Seconds until a log line reports that the final evaluation is still running."""
logger = logging.getLogger(__name__)


class Training(RunControl):
    """A run with a hub: the host, its engine, log, metrics and checkpoints.

    Resources are closed with `closing`.
    """

    def __init__(
        self,
        recipe: Recipe,
        closing: ExitStack,
        open_engine: Open,
        folder: RunFolder | None = None,
        resume: bool = False,
        new_segment: bool = False,
    ) -> None:
        super().__init__(recipe, folder, "the hub", resume=resume)
        recipe = self.recipe
        self.met_at: int | None = None
        """Version that reached the goal."""
        past = None
        if folder is not None and resume:
            past = read_past(folder, recipe, self.layout, new_segment)
        if past is not None:
            check_order(past, recipe)
        if past is not None and recipe.job.keep_optimizer:
            warn_of_kept_optimizer()
        conductor = past.conductors[HUB] if past else recipe.conductor()
        # The clock continues after the last record, because the time of lost work was real.
        now = max(conductor.now, past.logs[HUB][-1].now if past and past.logs[HUB] else 0.0)
        self.opened = open_engine(
            with_work(self.run_data, recipe, conductor), now, past.nodes if past else frozenset()
        )
        self.session = self._session(conductor, past)
        self.store = self.session.store
        self.divergence = Divergence(self.store)
        self.engine = engine_with_faults(
            self.opened,
            self.store,
            conductor,
            recipe.config.chaos,
            recipe.engine.names,
            past.logs[HUB] if past else None,
            self._left(past),
            self._flush,
        )
        self.short_lives = ShortLives(self.tally, recipe.strategy, recipe.job.batch_size, recipe.shards)
        self.waiting = WaitingWorkers(conductor)
        self.observers += [self.short_lives, self.waiting, self.session.follow_metrics]
        self.host = host_of(conductor, self.store, self.engine, self.observers)
        self.saving = Saving(
            recipe, folder, self.host, self.tally, self.layout, self._tensors, self.divergence, self.stop
        )
        self.saving.open(
            partial(self.begin_folder, is_new=past is None), past, self.opened.engine.now, closing, self.model
        )
        self.earlier = self.saving.earlier
        for record in self.earlier:
            self.session.follow_metrics(record)

    def run(self) -> Run:
        """Train until the goal is reached, evaluate the final version, and save it."""
        try:
            with self.stop.heard(), rows_named(self.recipe):
                self.saving.await_first()
                ended = drive(self.host, self.engine, self._ended, self._goal_due, self._waits)
                self.divergence.check()
                check_learned(self.tally, ended)
                ended = self._measure_final(ended)
                if self.stopped and ended != INTERRUPTED and self.folder and self.folder.following_stage:
                    ended = self.stopped  # by a callback, after the stage's last epoch
                if (now := self.engine.now) > self.host.conductor.now:
                    self.host.handle(Stopped(), now)
            self.store.final.scatter(self.model)
            self.model.eval()
            summary = self._summary(ended)
            ended = ended if self.saving.end(self.model, summary) else INTERRUPTED
            self._announce_checkpoint()
            self.short_lives.warn()
        except JobError as error:
            error = self.waiting.explained(error)
            why = f"{FAILED}{in_short(error)}"
            self.saving.end_failed(lambda: self._summary(why))
            raise error
        path = self.folder.path if self.folder else None
        return Run(self.model, summary, self.tally.quality.history, ended, path, self.saving.records)

    # --- setting up ----------------------------------------------------------------------------

    def _session(self, conductor: Conductor, past: SavedRun | None) -> Session:
        weights = self.opened.pool.take()
        weights.gather(self.model)
        goal, pool = self.recipe.goal, self.opened.pool
        session = Session(self.recipe, conductor, weights, self.tally, goal, pool)
        if past is not None:
            with past.readable():
                self.segments = load_state(past, session.store, self.recipe.segment(self.layout))
                for version in self._kept(conductor):
                    session.store.acquire(version)
        return session

    def _flush(self) -> None:
        self.saving.flush()

    def _left(self, past: SavedRun | None) -> list[str]:
        """Return the workers that a resumed run had at the end of its log."""
        if past is None or self.folder is None or self.recipe.config.chaos is None:
            return []
        tally = Tally(self.recipe.samples)
        take_into_account(tally, surviving(past.logs[HUB]), self.folder.log)
        return [node for node, row in tally.workers.items() if not row.gone]

    def _tensors(self) -> dict[str, Tensor]:
        return self.store.state_tensors(self._kept(self.host.conductor))

    def _kept(self, conductor: Conductor) -> list[int]:
        """Return the versions that the strategy keeps. A version that it keeps twice is listed twice."""
        return [int(version) for version, holds in conductor.kept.items() for _ in range(holds)]

    # --- under way -----------------------------------------------------------------------------

    def _ended(self) -> str:
        """Return why the run ends now, or an empty string. Also start evaluations and checkpoints that are due."""
        self.tally.advance(self.opened.engine.now)
        self._announce_checkpoint()
        if self.stop.signal:
            self.callbacks.interrupt()
            return INTERRUPTED
        if self.stopped:
            return self.stopped
        if self.saving.log is not None:
            self.saving.log.keep_up(self.tally.seconds)
        if met := self.session.reached():
            self.met_at = self.tally.version_of(met.figure)
            return str(met)
        if self.session.reached_epochs:
            return self.session.reached_epochs
        if not self.host.evaluating and self.session.evaluation_is_due():
            self.host.evaluate(self.host.conductor.version)
        if self.session.checkpoint_is_due() or self.opened.wants_checkpoint():
            self.saving.checkpoint()
        return ""

    def _goal_due(self) -> float:
        return self.recipe.goal.due(self.tally)

    def _waits(self) -> bool:
        return bool(self.host.evaluating) and self.session.waits_for_evaluation()

    def _announce_checkpoint(self) -> None:
        if self.saving.checkpoints is not None:
            self.announce_checkpoint(self.saving.checkpoints.newly_completed())

    def _summary(self, ended: str) -> dict[str, Any]:
        """Return the summary."""
        self.tally.finish()
        return self.tally.summary() | {
            "ended": ended,
            "ended_version": self._version_reported if self.met_at is None else self.met_at,
            "evaluated_version": self._version_reported,
            "records": self.saving.count,
            "run_dir": str(self.folder.path) if self.folder else None,
            BEST: self.saving.best.summary if self.saving.best is not None else None,
            EFFECTIVE_BATCH: self.recipe.effective_batch and str(self.recipe.effective_batch),
            **({STAGE: self.recipe.job.stage} if self.recipe.job.stage else {}),
        }

    @property
    def _version_reported(self) -> int:
        """Return the version in the summary: the newest evaluated version, or the newest version without an
        evaluation."""
        measured = self.tally.quality.evaluated_version
        return self.tally.versions if measured < 0 else measured

    def _measure_final(self, ended: str) -> str:
        """Wait for the final version's metrics, and return why the run ended.

        Other messages are ignored. An interrupted run saves immediately and does not wait.
        """
        final = self.host.conductor.version
        if ended == INTERRUPTED or not self.session.evaluates:
            return ended
        if self.tally.quality.evaluated_version != final:
            self.host.evaluate(final)
        engine, text = self.opened.engine, False
        began = engine.now
        while self.tally.quality.evaluated_version != final:
            if self.stop.signal:
                return INTERRUPTED
            if self.session.gives_up_measuring(began, engine.now):
                return ended
            message = engine.next(engine.now + LONG_MEASURE_SECONDS)  # returns None at this time, or earlier
            if message is None and not text and engine.now - began >= LONG_MEASURE_SECONDS:
                text = True
                logger.info(
                    "evaluating the final version has taken %g s so far. If the evaluator's process is stopped, "
                    "continue or kill it; another one then takes over",
                    LONG_MEASURE_SECONDS,
                )
            if isinstance(message, Evaluated):
                self.host.handle(message, engine.now)
        return ended


@contextmanager
def prepared(
    recipe: Recipe, folder: RunFolder | None = None, resume: bool = False, new_segment: bool = False
) -> Iterator[Training]:
    """Yield a run that is ready to start, and close it afterwards."""
    if folder is not None and resume:
        recipe = recipe.resuming(folder.settings().get("shards"))
    with ExitStack() as closing:
        open_engine = recipe.engine.begin(closing)
        closing.enter_context(preserve_random_state())
        yield Training(recipe, closing, open_engine, folder, resume, new_segment)
