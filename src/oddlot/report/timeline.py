"""What a run was doing when: the log's records laid out over time."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from oddlot.core.commands import Blend, Drop, Start, Step
from oddlot.core.conductor import ECHO
from oddlot.core.events import (
    Arrived,
    Cancelled,
    Gone,
    Joined,
    Leaving,
    Lost,
    Ordered,
    Refused,
    Resumed,
    Struck,
)
from oddlot.core.records import Record
from oddlot.core.tasks import Facts, NodeId, TaskId, UpdateId
from oddlot.history.metrics import Tally

MOST_POINTS = 1_000
"""of a line: what a picture can show"""
Interval = tuple[float, float]


class Moment(NamedTuple):
    """How far a run had come."""

    seconds: float
    versions: int
    samples: int
    dollars: float
    training_loss: float | None


@dataclass(slots=True)
class Lane:
    """A machine's time, in all its lives."""

    node: NodeId = ""
    """its newest life"""
    state: str = ""
    since: float = 0.0
    spells: dict[str, list[Interval]] = field(default_factory=lambda: defaultdict(list))
    """by state: `starting`, `working`, `wasted` (worked for nothing: cancelled, refused, late, dropped or lost),
    `waiting`, `leaving`, `lost`, `left`; in seconds"""
    tasks: dict[TaskId, None] = field(default_factory=dict)
    """what it was given and has not answered, the oldest first"""
    begun: float = 0.0
    """since when it has been at the oldest"""
    ended: bool = False
    """its newest life is over, whether the hub knows or not"""
    faults: list[tuple[float, str]] = field(default_factory=list)
    """when which misfortune was done to it on purpose"""
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_data: int = 0
    dollars: float = 0.0

    def begin(self, node: NodeId) -> None:
        """Its next life, or the start of one."""
        self.node, self.ended = node, False
        self.tasks.clear()

    def give(self, task: TaskId, now: float) -> None:
        """A task to work at, after those that it has."""
        self.begun = self.begun if self.tasks else now
        self.tasks[task] = None

    def answer(self, task: TaskId, now: float, counts: bool) -> None:
        """It is through with a task. What it had not come to has taken no time."""
        if task == next(iter(self.tasks), None):
            self.waste(now, counts)
        self.tasks.pop(task, None)

    def waste(self, now: float, counts: bool = False) -> None:
        """The oldest task ends here; unless it `counts`, the time since its beginning was for nothing."""
        if self.state == "working" and self.tasks and not counts:
            self.turn("wasted", self.begun)
            self.turn("working", now)
        self.begun = now

    def turn(self, state: str, now: float) -> None:
        """From now on it does something else."""
        if state == self.state:
            return
        spells = self.spells[self.state]
        if spells and spells[-1][1] == self.since:
            spells[-1] = (spells[-1][0], now)
        elif self.state and now > self.since:
            spells.append((self.since, now))
        self.state, self.since = state, now


@dataclass
class Course:
    """A whole run over time, in seconds of its clock."""

    seconds: float = 0.0
    progress: list[Moment] = field(default_factory=list)
    """at most about `MOST_POINTS`"""
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
        course, tally, arrived = cls(), Tally(size), dict[UpdateId, Facts]()
        step = max(1, len(records) // MOST_POINTS)
        for number, record in enumerate(records):
            version = tally.versions
            tally(record)
            course._follow(record, tally)
            _change(course.machines, record.now, len(tally.bill.here))
            _change(course.dollars_per_hour, record.now, 3600 * tally.bill.dollars_per_second)
            course._note_merges(record, version, arrived)
            if number % step == 0 or number == len(records) - 1:
                course.progress.append(
                    Moment(
                        record.now, tally.versions, tally.samples_merged, tally.dollars, tally.training_loss
                    )
                )
        course.seconds = max(seconds, tally.seconds)
        for drawn in (course.machines, course.dollars_per_hour, course.results, course.samples):
            drawn[:] = _level(_thinned(drawn), course.seconds)
        for lane in course.lanes.values():
            lane.turn("", course.seconds)
        for name, account in tally.bill.accounts.items():
            course._lane(name).dollars += account.dollars(course.seconds)
        return course

    def _follow(self, record: Record, tally: Tally) -> None:
        """Note what the machines do that this record is about."""
        self._note_answers(record)
        self._note_lives(record, tally)
        for action in record.actions:
            if isinstance(action, Start):
                self._lane(action.task.node).give(action.task.id, record.now)
        for node in _nodes(record):
            row, lane = tally.workers.get(node), self._lane(node)
            # What an earlier life's late answer says is not about this one.
            if row and lane.node == node and not lane.ended:
                lane.turn(row.state, record.now)
        match record.event:
            case Struck(_, kind, node) if node:
                self._lane(node).faults.append((record.now, kind))
            case Arrived(facts) if facts.sender in tally.workers:
                lane = self._lane(facts.sender)
                lane.bytes_up += facts.bytes_up
                lane.bytes_down += facts.bytes_down
                lane.bytes_data += facts.bytes_data
            case Cancelled(node=node) as ended if node in tally.workers:
                lane = self._lane(node)
                lane.bytes_down += ended.bytes_down
                lane.bytes_data += ended.bytes_data

    def _note_answers(self, record: Record) -> None:
        """Whether what machines did counts."""
        match record.event:
            case Arrived(facts):
                counts = record.remark != ECHO and Drop(facts.id) not in record.actions
                self._lane(facts.sender).answer(facts.id, record.now, counts)
            case Cancelled(task, node):
                self._lane(node).answer(task, record.now, counts=False)
            case Refused(task):
                self._lane(task.rpartition(":")[0]).answer(task, record.now, counts=False)
            case Lost(node) | Gone(node) if self._lane(node).node == node:
                self._lane(node).waste(record.now)

    def _note_lives(self, record: Record, tally: Tally) -> None:
        """Lives that begin and end, whether the hub knows of it or not."""
        match record.event:
            case Ordered(node):
                self._lane(node).begin(node)
                self._lane(node).turn("starting", record.now)
            case Joined(node):
                self._lane(node).begin(node)
            case Gone(node) if self._lane(node).node == node:
                # Without a row it was given up before it was ready.
                row = tally.workers.get(node)
                left = row is not None and row.state == "leaving"
                self._lane(node).turn("left" if left else "lost", record.now)
                self._lane(node).ended = True
            case Resumed():
                self.resumed.append(record.now)
                for lane in self.lanes.values():
                    if lane.state not in {"lost", "left"}:  # which they are until they come again
                        lane.turn("", record.now)

    def _lane(self, node: NodeId) -> Lane:
        return self.lanes.setdefault(node.partition(".")[0], Lane())

    def _note_merges(self, record: Record, version: int, arrived: dict[UpdateId, Facts]) -> None:
        if isinstance(record.event, Arrived) and record.remark != ECHO:
            arrived[record.event.update.id] = record.event.update
        for action in record.actions:
            if isinstance(action, Step | Blend):
                merged = [arrived.pop(update) for update in action.shares]
                self.staleness.update(version - facts.based_on for facts in merged)
                _change(self.results, record.now, len(merged))
                _change(self.samples, record.now, sum(facts.samples for facts in merged) / len(merged))
                version += 1
            elif isinstance(action, Drop):
                arrived.pop(action.update, None)


def _change(changes: list[Interval], now: float, value: float) -> None:
    """Note what is otherwise from now on; of several values at one time the last one counts."""
    if changes and changes[-1][0] == now:
        changes.pop()
    if not changes or changes[-1][1] != value:
        changes.append((now, value))


def _thinned(changes: list[Interval]) -> list[Interval]:
    """Of many changes the lowest and the highest of each bucket, and the last one of all."""
    size = len(changes) // MOST_POINTS + 1
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


def _nodes(record: Record) -> set[NodeId]:
    """Whom a record may have given another state."""
    nodes = {action.task.node for action in record.actions if isinstance(action, Start)}
    match record.event:
        case Joined(node) | Leaving(node) | Lost(node) | Cancelled(_, node):
            nodes.add(node)
        case Arrived(facts):
            nodes.add(facts.sender)
        case Refused(task):
            nodes.add(task.rpartition(":")[0])
    return nodes
