"""The timeline of a run on a fleet, simulated without gradients: when which updates are merged, and at which cost."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Self

from oddlot.core.commands import Blend, Drop, Start, Step
from oddlot.core.events import Arrived
from oddlot.core.records import ECHO, Record
from oddlot.core.sample_spans import split
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import JobError, UsageError
from oddlot.core.support.text import duration
from oddlot.core.tasks import Task, TaskId
from oddlot.engines.loop import drive
from oddlot.engines.simulated.config import Simulated
from oddlot.history.run_outcome import in_short
from oddlot.machines.market import Fleet
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.run.training import prepared
from oddlot.train.job import Job

WITHOUT_MACHINES = {"stalled", "lifetimes_too_short", "lost_while_starting", "capacities_never_overlap"}
"""Codes of errors of a run that machines no longer advance."""
ENDLESS = "seconds>=1e15"
"""Goal of a run that its reader ends. It is not an amount of work, so a buying policy needs `epochs`."""


@dataclass(frozen=True, slots=True)
class Part:
    """An update in a merge."""

    task: Task
    """The computed part of its task."""
    samples: int
    share: float


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge: its time, the cost until then, and its updates."""

    seconds: float
    dollars: float
    epochs: float
    """Samples merged so far, in passes over the data."""
    merged: int | None
    """Samples merged before, for a schedule of the learning rate. None without a schedule."""
    parts: Sequence[Part]
    oldest: int
    """Oldest version that an open task or an update in the inbox started from."""
    is_evaluated: bool
    """Whether an evaluation is due. The run evaluates this version or, at an interval in seconds, the one before."""


def check_predictable(strategy: Strategy) -> None:
    """Raise UsageError if the decisions of a strategy depend on gradients, or on the peers of a mesh."""
    traits = strategy.traits(1)
    if traits.mesh or traits.reads_gradients:
        name = type(strategy).__name__
        message = f"{name} decides by gradients or runs on a mesh: the planner cannot predict its steps"
        raise UsageError(message, "not_predictable", "strategies", strategy=name)


class Timeline:
    """The merges of a run, simulated as far as they are needed.

    Only strategies with decisions that do not depend on gradients or metrics have a timeline without them.
    """

    def __init__(self, recipe: Recipe) -> None:
        check_predictable(recipe.strategy)
        self.cuts = recipe.cuts
        """Boundaries of the parts of the data, or the number of shards."""
        self.merges: list[Merge] = []
        self.start_seconds = 0.0
        """Time of the first task. Machines start before it."""
        self._error: JobError | None = None
        """Why no further merge comes."""
        self._closing = ExitStack()
        self._training = self._closing.enter_context(prepared(recipe))
        self._evaluation = recipe.config.evaluate_every.reminder(self._training.tally)
        self._tasks: dict[TaskId, Task] = {}
        self._samples: dict[TaskId, int] = {}
        self._training.start_callbacks([self._note])

    @classmethod
    def of(cls, job: Job, strategy: Strategy, fleet: Fleet, config: RunConfig, in_flight: int = 1) -> Self:
        """Return a timeline of a job on a fleet, without the goal in `config`. Raise UsageError as in `oddlot.fit`."""
        engine = Simulated.of(fleet, config.seed, in_flight, computes=False)
        return cls(Recipe(job, strategy, engine, replace(config, until=ENDLESS)))

    @property
    def ended(self) -> str:
        """Text that no further merge comes, because the fleet has no machines left. Empty: not so far."""
        if self._error is None:
            return ""
        if (seconds := self._error.fields.get("seconds")) is not None:
            return f"ran out of machines at {duration(seconds)}"
        return f"ran out of machines: {in_short(self._error).split('. ')[0]}"

    def has(self, version: int) -> bool:
        """Return whether the fleet has machines until this version, from 1. Simulate the run until then."""
        if version > len(self.merges) and self._error is None:
            training = self._training
            try:
                drive(training.host, training.engine, lambda: "made" if len(self.merges) >= version else "")
            except JobError as error:
                if error.code not in WITHOUT_MACHINES:
                    raise
                self._error = error
        return version <= len(self.merges)

    def merge(self, version: int) -> Merge:
        """Return the merge that makes a version, from 1. Raise JobError if the fleet has no machines before."""
        if not self.has(version):
            assert self._error is not None, "an ended timeline has an error"
            raise self._error
        return self.merges[version - 1]

    def latest(self, version: int) -> Merge:
        """Return the merge that makes a version, or the last merge before the fleet has no machines."""
        self.has(version)
        return self.merges[min(version, len(self.merges)) - 1]

    def version_at(self, seconds: float) -> int:
        """Return the newest version at this time."""
        while not self.merges or self.merges[-1].seconds <= seconds:
            if not self.has(len(self.merges) + 1):
                break
        return bisect_right(self.merges, seconds, key=lambda merge: merge.seconds)

    def close(self) -> None:
        """End the simulated run."""
        self._closing.close()

    def _note(self, record: Record) -> None:
        if isinstance(record.event, Arrived) and record.remark != ECHO:
            self._samples[record.event.update.id] = record.event.update.samples
        for action in record.actions:
            match action:
                case Start(task):
                    self.start_seconds = self.start_seconds or record.now
                    self._tasks[task.id] = task
                case Drop(update):
                    self._part(update, 0.0)
                case Step(shares) | Blend(shares):
                    parts = [self._part(update, share) for update, share in shares.items()]
                    merged = action.merged if isinstance(action, Step) else None
                    self._add(parts, merged)

    def _part(self, update: TaskId, share: float) -> Part:
        task, samples = self._tasks.pop(update), self._samples.pop(update)
        spans, _ = split(task.spans, samples)
        done = Task(task.id, task.node, spans, task.version, task.kind, task.pull, task.merged)
        return Part(done, samples, share)

    def _add(self, parts: Sequence[Part], merged: int | None) -> None:
        training = self._training
        tally, version = training.tally, len(self.merges) + 1
        needed = [*training.host.holds.values(), *(self._tasks[task].version for task in self._samples)]
        oldest = min(needed, default=version)
        due = self._evaluation.due(tally)
        self.merges.append(Merge(tally.seconds, tally.dollars, tally.epochs, merged, parts, oldest, due))
