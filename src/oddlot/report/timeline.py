"""What a run was doing when: the log's records laid out over time."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from oddlot.core.events import Resumed, Struck
from oddlot.core.records import Record
from oddlot.core.tasks import NodeId, machine_of
from oddlot.history.counts import Traffic
from oddlot.history.metrics import Tally
from oddlot.history.worker_timeline import Worker, WorkerTimeline

MAX_POINTS = 1_000
"""of a line: what a picture can show"""
Interval = tuple[float, float]


class Moment(NamedTuple):
    """How far a run had come."""

    seconds: float
    versions: int
    samples: int
    dollars: float
    training_loss: float | None

    @classmethod
    def of(cls, tally: Tally) -> "Moment":
        """Return how far a run has come now."""
        merged, loss = tally.samples.merged, tally.quality.training_loss
        return cls(tally.seconds, tally.versions, merged, tally.dollars, loss)


@dataclass(slots=True)
class Lane:
    """A machine's time, in all its lives."""

    spells: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    """Intervals by state: `starting`, `working`, `wasted` (computed and not used), `waiting`, `leaving`, `lost`,
    `left`."""
    faults: list[tuple[float, str]] = field(default_factory=list)
    """Times and kinds of the faults injected there."""
    traffic: Traffic = field(default_factory=Traffic)
    dollars: float = 0.0
    newest: str = ""
    """State of the newest interval."""

    def add(self, state: str, start: float, stop: float) -> None:
        """Append an interval, or lengthen the newest one."""
        spells = self.spells[state]
        if state == self.newest and spells[-1][1] == start:
            spells[-1] = spells[-1][0], stop
        elif stop > start:
            spells.append((start, stop))
            self.newest = state


@dataclass
class Course:
    """A whole run over time, in seconds of its clock."""

    seconds: float = 0.0
    progress: list[Moment] = field(default_factory=list)
    """at most about `MAX_POINTS`"""
    lanes: dict[str, Lane] = field(default_factory=dict)
    """by machine"""
    machines: list[Interval] = field(default_factory=list)
    """how many were there: level lines from change to change"""
    dollars_per_hour: list[Interval] = field(default_factory=list)
    """that everything cost, likewise"""
    resumed: list[float] = field(default_factory=list)
    """when the run went on from a checkpoint"""
    results: list[Interval] = field(default_factory=list)
    """how many of them a merge used, likewise"""
    samples: list[Interval] = field(default_factory=list)
    """of a result that was merged: the mean over its merge, likewise"""
    staleness: Counter[int] = field(default_factory=Counter)
    """how many merged updates were so many versions late"""

    @classmethod
    def of(cls, records: Sequence[Record], size: int, seconds: float = 0.0) -> "Course":
        """The course of the history that holds; it ends `seconds` after the run's beginning, if not later."""
        course, tally = cls(), Tally(size, keep=True)
        step = max(1, len(records) // MAX_POINTS)
        for number, record in enumerate(records):
            tally(record)
            course._note_marks(record)
            _change(course.machines, record.now, len(tally.cost.here))
            _change(course.dollars_per_hour, record.now, 3600 * tally.cost.dollars_per_second)
            if number % step == 0 or number == len(records) - 1:
                course.progress.append(Moment.of(tally))
        course.seconds = max(seconds, tally.seconds)
        course._note_merges(tally.timeline)
        for drawn in (course.machines, course.dollars_per_hour, course.results, course.samples):
            drawn[:] = _level(_thinned(drawn), course.seconds)
        course._lay_out(tally.timeline)
        for name, account in tally.cost.accounts.items():
            course._lane(name).dollars += account.dollars(course.seconds)
        return course

    def _note_marks(self, record: Record) -> None:
        """Note what is marked in the lanes."""
        match record.event:
            case Struck(_, kind, node) if node:
                self._lane(node).faults.append((record.now, kind))
            case Resumed():
                self.resumed.append(record.now)

    def _lay_out(self, timeline: WorkerTimeline) -> None:
        """Lay the lives of each machine one behind the other."""
        lives = defaultdict[str, list[Worker]](list)
        for worker in timeline.lives:
            lives[machine_of(worker.node)].append(worker)
        for machine, workers in lives.items():
            lane = self._lane(machine)
            ends = [*(worker.came for worker in workers[1:]), self.seconds]
            for worker, end in zip(workers, ends, strict=True):
                for interval in worker.history(end):
                    lane.add(*interval)
                sent = worker.traffic
                lane.traffic.add(sent.bytes_up, sent.bytes_down, sent.bytes_data, wasted=False)

    def _lane(self, node: NodeId) -> Lane:
        return self.lanes.setdefault(machine_of(node), Lane())

    def _note_merges(self, timeline: WorkerTimeline) -> None:
        for version, (now, tasks) in enumerate(timeline.merges):
            self.staleness.update(version - task.version for task in tasks)
            _change(self.results, now, len(tasks))
            _change(self.samples, now, sum(task.samples for task in tasks) / len(tasks))


def _change(changes: list[Interval], now: float, value: float) -> None:
    """Note what is otherwise from now on; of several values at one time the last one counts."""
    if changes and changes[-1][0] == now:
        changes.pop()
    if not changes or changes[-1][1] != value:
        changes.append((now, value))


def _thinned(changes: list[Interval]) -> list[Interval]:
    """Of many changes the lowest and the highest of each bucket, and the last one of all."""
    size = len(changes) // MAX_POINTS + 1
    kept = list[Interval]()
    for first in range(0, len(changes), size):
        bucket = changes[first : first + size]
        kept += sorted({min(bucket, key=lambda change: change[1]), max(bucket, key=lambda change: change[1])})
    return kept if changes[-1:] == kept[-1:] else [*kept, changes[-1]]


def _level(changes: list[Interval], end: float) -> list[Interval]:
    """The corners of the line that is level from each change to the next one, until the end; what changes there has no
    length, and is left out."""
    corners = list[Interval]()
    for (now, value), (then, _) in pairwise([*changes, (end, 0.0)]):
        if now < end or not corners:
            corners += [(now, value), (then, value)]
    return corners
