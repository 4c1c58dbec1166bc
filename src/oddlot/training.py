"""One training from its plan to its end: the loop's surroundings that are the same on every engine."""

import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from oddlot.core import words as w
from oddlot.core.conductor import Conductor
from oddlot.core.errors import UsageError
from oddlot.core.ledger import Ledger
from oddlot.core.plain import to_plain
from oddlot.core.strategy import Strategy
from oddlot.engines.host import Host, Observer
from oddlot.engines.mailbox import drive
from oddlot.engines.numbers import users_code
from oddlot.engines.nursery import Nursery
from oddlot.engines.open import Local, Numbers, Opened, Simulated, open_local, open_simulated
from oddlot.goal import Every, Goal
from oddlot.observe import Log, Tally, read_log, surviving
from oddlot.run_folder import SETTINGS, SUMMARY, RunFolder
from oddlot.train.chance import kept_chance, seed_all
from oddlot.train.checkpoint import BackgroundSaver, Snapshot, newest
from oddlot.train.data import Batches
from oddlot.train.job import Job
from oddlot.train.layout import Layout
from oddlot.train.store import Store
from oddlot.wire.codec import Codec, Plain

INTERRUPTED = "interrupted"


@dataclass
class Run:
    """What became of a training."""

    model: nn.Module
    """with the final weights, in evaluation mode, on the CPU"""
    summary: dict[str, Any]
    """the figures that `--json` prints"""
    history: list[dict[str, float]]
    """a row an evaluation: seconds, versions, epochs, dollars, loss and the job's metrics"""
    ended: str
    """why: the goal that was reached, or `interrupted`"""
    folder: Path | None = None
    _records: list[w.Record] = field(default_factory=list, repr=False)

    @property
    def records(self) -> Sequence[w.Record]:
        """The log: everything that happened and was decided."""
        return surviving(read_log(RunFolder(self.folder).log))[0] if self.folder else self._records

    @property
    def accuracy(self) -> float | None:
        """Of the final version on the evaluation set, if the job measures it."""
        return self.summary["accuracy"]  # type: ignore[no-any-return]

    @property
    def loss(self) -> float | None:
        """Of the final version on the evaluation set; without one, the running training loss."""
        return self.summary["loss"]  # type: ignore[no-any-return]

    @property
    def hours(self) -> float:
        """On the run's clock, virtual or real."""
        return self.summary["seconds"] / 3600  # type: ignore[no-any-return]

    @property
    def dollars(self) -> float:
        """Machine-seconds times price."""
        return self.summary["dollars"]  # type: ignore[no-any-return]

    @property
    def wasted_share(self) -> float:
        """The part of all samples given out that never reached the model."""
        wasted, merged = self.summary["samples_wasted"], self.summary["samples_merged"]
        return wasted / (wasted + merged) if wasted else 0.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run goes, apart from job, strategy and engine; see `oddlot.fit`."""

    until: str
    seed: int = 0
    codec: Codec = Plain()  # noqa: RUF009 - frozen, and without state
    shards: int = 1
    epoch_barrier: bool = False
    skip_bad: bool = False
    evaluate_every: Every = field(default_factory=lambda: Every(1, "epochs"))
    checkpoint_every: Every = field(default_factory=lambda: Every(60, "seconds"))


@dataclass(frozen=True)
class Plan:
    """What is to be done, checked before anything starts."""

    job: Job
    strategy: Strategy
    on: Local | Simulated
    settings: Settings

    def __post_init__(self) -> None:
        workers, job = self.on.workers, self.job
        if job.batch > self.samples:
            raise UsageError(
                f"a batch of {job.batch} is larger than the data ({self.samples} samples): lower Job(batch=...)"
            )
        if workers > self.samples:
            raise UsageError(f"{workers} workers for {self.samples} samples: use fewer workers")
        least = getattr(self.strategy, "least_workers", 1)
        if least > workers:
            raise UsageError(
                f"{self.strategy} needs {least} workers, there are {workers}: lower k or add workers"
            )
        if job.evaluation is not None:
            Batches(job.evaluation, job.collate, "the evaluation set")
        elif job.metrics:
            raise UsageError(f"the metrics {', '.join(job.metrics)} need Job(evaluation=...)")
        if not 1 <= self.settings.shards <= self.samples:
            raise UsageError(f"{self.settings.shards} shards of {self.samples} samples: at least 1 in each")
        _ = self.goal  # raises UsageError now, not later

    @cached_property
    def samples(self) -> int:
        """The samples of an epoch."""
        return len(Batches(self.job.data, self.job.collate))

    @cached_property
    def goal(self) -> Goal:
        """When the run ends."""
        if not self.settings.until:
            raise UsageError(
                'when does the run end? Pass until="epochs>=10", "accuracy>=0.98 or seconds>=60", ...'
            )
        return Goal.parse(self.settings.until, self.job.metrics, self.job.evaluation is not None)

    @property
    def rule(self) -> Any:
        """What steps at the hub: the strategy's server rule, or the job's optimizer."""
        return getattr(self.strategy, "rule", None) or self.job.optimizer

    def conductor(self) -> Conductor:
        """The books of a run that begins."""
        how = self.settings
        ledger = Ledger(self.samples, self.goal.epochs, how.shards, how.epoch_barrier, how.skip_bad)
        strategy = deepcopy(self.strategy)  # it gathers state
        return Conductor(strategy, ledger, self.job.batch, self.on.in_flight, how.seed)

    def identity(self, layout: Layout) -> dict[str, Any]:
        """What a run and its continuation must have in common."""
        return {
            "format": 1,
            "job": self.job.name,
            "parameters": {entry.name: list(entry.shape) for entry in layout.entries},
            "samples": self.samples,
            "batch": self.job.batch,
            "optimizer": to_plain(self.job.optimizer),
            "strategy": to_plain(self.strategy),
            "seed": self.settings.seed,
            "shards": self.settings.shards,
        }


@dataclass(frozen=True)
class Past:
    """What a resumed run goes on from: its newest whole checkpoint, and its log."""

    conductor: Conductor
    tensors: Mapping[str, Tensor]
    after_record: int
    log: list[w.Record]

    @property
    def nodes(self) -> frozenset[w.NodeId]:
        """The workers' names that are used up."""
        return frozenset(record.event.node for record in self.log if isinstance(record.event, w.Joined))


class Training:
    """A host with its engine, log, figures and checkpoints: what `fit` sets up and drives.

    What is opened here is put on `closing`.
    """

    def __init__(
        self,
        plan: Plan,
        closing: ExitStack,
        folder: RunFolder | None = None,
        nursery: Nursery | None = None,
        resume: bool = False,
    ) -> None:
        self.plan, self.folder = plan, folder
        self.tally = Tally(plan.samples)
        self.records: list[w.Record] = []
        self.evaluation_due = self.asked_to_stop = False
        seed_all(plan.settings.seed)
        with users_code("the hub"):
            self.model = plan.job.model()
        self.layout = Layout.from_module(self.model)
        self.identity = plan.identity(self.layout)
        past = self._past(folder) if folder is not None and resume else None
        conductor = past.conductor if past else plan.conductor()
        self.opened = self._open(nursery, conductor.now, past.nodes if past else frozenset())
        closing.callback(self.opened.close)
        self.store = self._store(past)
        self.host = Host(conductor, self.opened.shadow or self.store, self.opened.engine, [self.tally])
        self.saver = BackgroundSaver(folder.checkpoints) if folder is not None else None
        closing.callback(self._close_saver)
        self._open_log(past, closing)

    def run(self) -> Run:
        """Train until the goal is reached, measure the final version, save."""
        with self._interruptible():
            ended = drive(self.host, self.opened.engine, self._ended)
            self._measure_final()
        self.tally.finish()
        self.store.weights.scatter(self.model)
        self.model.eval()
        path = self.folder.path if self.folder else None
        summary = self.tally.summary() | {"samples_skipped": self.host.conductor.ledger.skipped}
        summary |= {"ended": ended, "run_dir": str(path) if path else None}
        self._save_end(summary)
        return Run(self.model, summary, self.tally.history, ended, path, self.records)

    def observe(self, observers: Sequence[Observer]) -> None:
        """Show them what this run had done before it was resumed, then everything as it happens."""
        for observer in observers:
            for record in self.earlier:
                observer(record)
        self.host.observers.extend(observers)

    # --- setting up ----------------------------------------------------------------------------

    def _past(self, folder: RunFolder) -> Past:
        """Read a run that is to go on. Its end and its engine may be others than before."""
        folder.check_settings(self.identity)
        checkpoint = newest(folder.checkpoints, self.layout.fingerprint)
        for warning in checkpoint.warnings:
            warnings.warn(warning, stacklevel=2)
        snapshot = checkpoint.load()
        conductor = Conductor.from_plain(dict(snapshot.conductor), self.plan.strategy)
        conductor.in_flight = self.plan.on.in_flight
        ledger, how = conductor.ledger, self.plan.settings
        ledger.epochs, ledger.epoch_barrier = self.plan.goal.epochs, how.epoch_barrier
        ledger.skip_bad = how.skip_bad
        return Past(conductor, snapshot.tensors, snapshot.extra["records"], list(read_log(folder.log)))

    def _open(self, nursery: Nursery | None, now: float, taken: frozenset[w.NodeId]) -> Opened:
        plan = self.plan
        constants = self.layout.constants(self.model)
        how = plan.settings
        numbers = Numbers(plan.job, self.layout, constants, how.codec, how.seed, how.shards)
        if isinstance(plan.on, Simulated):
            return open_simulated(plan.on, numbers, now, taken)
        assert nursery is not None
        return open_local(plan.on, numbers, nursery, now, taken)

    def _store(self, past: Past | None) -> Store:
        weights = self.opened.pool.take()
        weights.gather(self.model)
        store = Store(weights, self.plan.rule, self.opened.pool)
        if past is not None:
            store.load_state(past.tensors)
        return store

    def _open_log(self, past: Past | None, closing: ExitStack) -> None:
        """Begin the log, or go on with it: what came after the checkpoint is lost work."""
        self.log: Log | None = None
        self.earlier: list[w.Record] = []
        if self.folder is None:
            self.host.observers.append(self.records.append)
            return
        if past is None:
            self.folder.write(SETTINGS, self.identity)
        else:
            self.earlier, lost = surviving(past.log, past.after_record)
            for record in self.earlier:
                self.tally(record)
            self.tally.samples_wasted += lost
        self.log = Log(self.folder.log, self.host.conductor)
        closing.callback(self.log.close)
        self.host.observers.append(self.log)
        if past is not None:
            self.host.handle(w.Resumed(past.after_record), self.host.conductor.now)
            self.earlier.append(self.host.story[-1])
        self._checkpoint()

    # --- under way -----------------------------------------------------------------------------

    def _ended(self) -> str:
        """Why the run ends now; empty to go on. Also keeps the rhythms of evaluation and checkpoints."""
        self.tally.advance(self.opened.engine.now)
        if self.asked_to_stop:
            return INTERRUPTED
        if reason := self.plan.goal.reached(self.tally):
            return reason
        if self.host.conductor.done:
            return f"epochs>={self.host.conductor.ledger.epochs}"
        self._evaluate_when_due()
        if self.saver is not None and self.plan.settings.checkpoint_every.due(self.tally):
            self._checkpoint()
        return ""

    def _evaluate_when_due(self) -> None:
        """One evaluation at a time; one that falls due meanwhile takes the newest version afterwards."""
        if self.plan.job.evaluation is None:
            return
        self.evaluation_due = self.plan.settings.evaluate_every.due(self.tally) or self.evaluation_due
        if self.evaluation_due and not self.host.evaluating:
            self.evaluation_due = False
            self.host.evaluate(self.host.conductor.version)

    def _measure_final(self) -> None:
        """Wait for the final version's metrics; whatever else comes in is too late to count."""
        final = self.host.conductor.version
        if self.plan.job.evaluation is None or self.opened.shadow is not None:
            return
        if self.tally.evaluated_version != final:
            self.host.evaluate(final)
        while self.tally.evaluated_version != final:
            engine = self.opened.engine
            message = engine.next(engine.now + 60.0)
            if isinstance(message, w.Evaluated):
                self.host.handle(message, engine.now)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C asks the run to stop; the second one does what it always does."""
        before = signal.getsignal(signal.SIGINT)

        def ask(*_: object) -> None:
            self.asked_to_stop = True
            signal.signal(signal.SIGINT, before)

        try:
            signal.signal(signal.SIGINT, ask)
        except ValueError:  # not the main thread: Ctrl-C is somebody else's
            yield
            return
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    # --- saving --------------------------------------------------------------------------------

    def _checkpoint(self) -> bool:
        """Have the state of this moment written in the background; the log up to here is in its file first."""
        if self.saver is None or self.log is None:
            return False
        for problem in self.saver.problems():
            warnings.warn(problem, stacklevel=2)
        self.log.flush()
        conductor = self.host.conductor
        return self.saver.save(
            Snapshot(
                conductor.version,
                self.layout.fingerprint,
                conductor.to_plain(),
                self.layout.to_json(),
                self.store.state_tensors(),
                {"records": self.log.records},
            )
        )

    def _save_end(self, summary: dict[str, Any]) -> None:
        if self.folder is None or self.saver is None:
            return
        if not self._checkpoint():  # one is being written: this one comes after it
            self._close_saver()
            self.saver = BackgroundSaver(self.folder.checkpoints)
            self._checkpoint()
        self.folder.write_model(self.model)
        self.folder.write(SUMMARY, summary)

    def _close_saver(self) -> None:
        for problem in self.saver.close() if self.saver is not None else ():
            warnings.warn(problem, stacklevel=2)


@contextmanager
def prepared(plan: Plan, folder: RunFolder | None = None, resume: bool = False) -> Iterator[Training]:
    """A training that is ready to run, and closed afterwards."""
    with ExitStack() as stack:
        # Asked for first: importing PyTorch in the fork server takes as long as all the rest.
        nursery = Nursery() if isinstance(plan.on, Local) else None
        if nursery is not None:
            stack.callback(nursery.close)
        stack.enter_context(kept_chance())
        yield Training(plan, stack, folder, nursery, resume)
