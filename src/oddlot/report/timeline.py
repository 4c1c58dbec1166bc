"""The timeline of a run, for charts: progress, machines, prices, faults and merges."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from oddlot.core.events import FaultInjected, Resumed
from oddlot.core.records import Record
from oddlot.core.tasks import NodeId, machine_of
from oddlot.history.metrics import Tally
from oddlot.history.sample_counts import Traffic
from oddlot.history.worker_timeline import WorkerStates, WorkerTimeline

MAX_POINTS = 1_000
"""Largest number of points per line in a chart."""
Interval = tuple[float, float]


class Moment(NamedTuple):
    """The progress of a run at one moment."""

    seconds: float
    versions: int
    samples: int
    dollars: float
    training_loss: float | None

    @classmethod
    def of(cls, tally: Tally) -> "Moment":
        """Return the current progress of a run."""
        merged, loss = tally.samples.merged, tally.quality.training_loss
        return cls(tally.seconds, tally.versions, merged, tally.dollars, loss)


@dataclass(slots=True)
class MachineTimeline:
    """The timeline of a machine, over all its workers."""

    spells: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    """Intervals by state: `starting`, `working`, `wasted` (computed but not merged), `waiting`, `leaving`, `lost`,
    `left`."""
    faults: list[tuple[float, str]] = field(default_factory=list)
    """Times and kinds of faults injected on this machine."""
    traffic: Traffic = field(default_factory=Traffic)
    dollars: float = 0.0
    newest: str = ""
    """State of the newest interval."""

    def add(self, state: str, start: float, stop: float) -> None:
        """Append an interval, or extend the newest interval."""
        spells = self.spells[state]
        if state == self.newest and spells[-1][1] == start:
            spells[-1] = spells[-1][0], stop
        elif stop > start:
            spells.append((start, stop))
            self.newest = state


@dataclass
class RunTimeline:
    """A run over time, in seconds of its clock."""

    seconds: float = 0.0
    progress: list[Moment] = field(default_factory=list)
    """At most about `MAX_POINTS` moments."""
    by_machine: dict[str, MachineTimeline] = field(default_factory=dict)
    """Timelines by machine."""
    machines: list[Interval] = field(default_factory=list)
    """Number of machines, as corners of a step function."""
    dollars_per_hour: list[Interval] = field(default_factory=list)
    """Total price of the machines, as corners of a step function."""
    resumed: list[float] = field(default_factory=list)
    """Times of resumes."""
    results: list[Interval] = field(default_factory=list)
    """Updates per merge, as corners of a step function."""
    samples: list[Interval] = field(default_factory=list)
    """Mean samples per update of a merge, as corners of a step function."""
    staleness: Counter[int] = field(default_factory=Counter)
    """Number of merged updates by staleness, in versions."""

    @classmethod
    def of(cls, records: Sequence[Record], size: int, seconds: float = 0.0) -> "RunTimeline":
        """Return the timeline of a valid history. It covers at least `seconds`."""
        run_timeline, tally = cls(), Tally(size, keep=True)
        step = max(1, len(records) // MAX_POINTS)
        for number, record in enumerate(records):
            tally(record)
            run_timeline._note_marks(record)
            _change(run_timeline.machines, record.now, len(tally.cost.here))
            _change(run_timeline.dollars_per_hour, record.now, 3600 * tally.cost.dollars_per_second)
            if number % step == 0 or number == len(records) - 1:
                run_timeline.progress.append(Moment.of(tally))
        run_timeline.seconds = max(seconds, tally.seconds)
        run_timeline._note_merges(tally.timeline)
        for drawn in (
            run_timeline.machines,
            run_timeline.dollars_per_hour,
            run_timeline.results,
            run_timeline.samples,
        ):
            drawn[:] = _level(_thinned(drawn), run_timeline.seconds)
        run_timeline._lay_out(tally.timeline)
        for name, account in tally.cost.accounts.items():
            run_timeline._machine_timeline(name).dollars += account.dollars(run_timeline.seconds)
        return run_timeline

    def _note_marks(self, record: Record) -> None:
        """Collect faults and resumes."""
        match record.event:
            case FaultInjected(_, kind, node) if node:
                self._machine_timeline(node).faults.append((record.now, kind))
            case Resumed() if record.now not in self.resumed[-1:]:  # peers of a mesh resume at the same time
                self.resumed.append(record.now)

    def _lay_out(self, timeline: WorkerTimeline) -> None:
        """Join the intervals of each machine's workers."""
        lives = defaultdict[str, list[WorkerStates]](list)
        for worker in timeline.lives:
            lives[machine_of(worker.node)].append(worker)
        for machine, workers in lives.items():
            of_machine = self._machine_timeline(machine)
            ends = [*(worker.came for worker in workers[1:]), self.seconds]
            for worker, end in zip(workers, ends, strict=True):
                for interval in worker.history(end):
                    of_machine.add(*interval)
                sent = worker.traffic
                of_machine.traffic.add(sent.bytes_up, sent.bytes_down, sent.bytes_data, wasted=False)

    def _machine_timeline(self, node: NodeId) -> MachineTimeline:
        return self.by_machine.setdefault(machine_of(node), MachineTimeline())

    def _note_merges(self, timeline: WorkerTimeline) -> None:
        for version, (now, tasks) in enumerate(timeline.merges):
            self.staleness.update(version - task.version for task in tasks)
            _change(self.results, now, len(tasks))
            _change(self.samples, now, sum(task.samples for task in tasks) / len(tasks))


def machine_order(name: str) -> tuple[str, int, str]:
    """Return a sort key that puts east10 after east9 and before west1."""
    kind = name.rstrip("0123456789")
    number = name[len(kind) :]
    return kind, len(number), number


def _change(changes: list[Interval], now: float, value: float) -> None:
    """Append a change of a value. A change at the same time as the previous one replaces it."""
    if changes and changes[-1][0] == now:
        changes.pop()
    if not changes or changes[-1][1] != value:
        changes.append((now, value))


def _thinned(changes: list[Interval]) -> list[Interval]:
    """Return about `MAX_POINTS` changes: the minimum and maximum of each bucket, and the last change."""
    size = len(changes) // MAX_POINTS + 1
    kept = list[Interval]()
    for first in range(0, len(changes), size):
        bucket = changes[first : first + size]
        kept += sorted({min(bucket, key=lambda change: change[1]), max(bucket, key=lambda change: change[1])})
    return kept if changes[-1:] == kept[-1:] else [*kept, changes[-1]]


def _level(changes: list[Interval], end: float) -> list[Interval]:
    """Return the corners of the step function until `end`, without changes at `end`."""
    corners = list[Interval]()
    for (now, value), (then, _) in pairwise([*changes, (end, 0.0)]):
        if now < end or not corners:
            corners += [(now, value), (then, value)]
    return corners
