"""The figures of a run: every one is a function of its records."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oddlot.core.commands import Abort, Action, Blend, Drop, Skip, Start, Step
from oddlot.core.conductor import ECHO
from oddlot.core.errors import CheckpointError
from oddlot.core.events import (
    Arrived,
    Cancelled,
    Evaluated,
    Gone,
    Joined,
    Leaving,
    Lost,
    Ordered,
    Priced,
    Refused,
    Resumed,
)
from oddlot.core.records import Record
from oddlot.core.serialization import DAMAGED
from oddlot.core.spans import samples_in
from oddlot.core.tasks import Facts, NodeId, TaskId, UpdateId
from oddlot.history.cost import Bill
from oddlot.history.log import given_out, surviving

WASTES = {
    "lost": "with their workers",
    "cancelled": "no longer wanted",
    "late": "answered after their lease, so computed twice",
    "dropped": "too stale to merge",
    "refused": "with bad numbers",
    "resumed": "since the checkpoint that was resumed from",
    "unfinished": "under way at the end",
}
"""Why samples were assigned for nothing."""
VERSION_FIGURES = ("seconds", "versions", "epochs", "dollars")
"""what a row of the history has beside the metrics: what it had taken to make the version"""
MOST_NOTED, NOTES = 10_000, 4
SMOOTHING = 0.05
"""weight of the newest update in the running training loss"""


@dataclass(slots=True)
class WorkerRow:
    """What one worker is doing, as far as the log knows."""

    state: str = "waiting"
    """`working`, `waiting`, `leaving`, `left` or `lost`"""
    since: float = 0.0
    samples: int = 0
    """computed by it and merged"""
    begun: float = 0.0
    """since when it has been at its oldest task"""
    tasks: set[TaskId] = field(default_factory=set)
    """what it was given and has not answered"""

    @property
    def gone(self) -> bool:
        """It will not be heard of any more."""
        return self.state in {"left", "lost"}


@dataclass
class Tally:
    """The figures of a run, kept up to date record by record.

    `size` is the number of samples of an epoch.
    """

    size: int = 1
    seconds: float = 0.0
    versions: int = 0
    updates: int = 0
    samples_assigned: int = 0
    """of all tasks given out, in lives that a resume made void too: what follows, and what is under way"""
    samples_merged: int = 0
    samples_returned: int = 0
    """not begun by whoever handed over a part"""
    samples_skipped: int = 0
    """given up, their numbers being bad again and again"""
    wasted: Counter[str] = field(default_factory=Counter)
    """samples that were assigned for nothing, by the reason, one of `WASTES`"""
    bytes_up: int = 0
    bytes_down: int = 0
    """of weights, as answers tell: what was sent for work that was lost with its worker is not known"""
    bytes_data: int = 0
    """of samples that had to be brought to workers, where the data are in shards; likewise"""
    bytes_wasted: int = 0
    """of all three, what belongs to tasks that were cancelled or answered too late"""
    overwritten: int = 0
    """updates whose merge another one has written over, where the hub's store does that"""
    read: int | None = None
    """the version on top of which the newest update is written, if not the newest"""
    bill: Bill = field(default_factory=Bill)
    resumed_at: int = -1
    """the version that the run went on from the last time"""
    workers_lost: int = 0
    workers_left: int = 0
    """with notice"""
    starts_lost: int = 0
    """machines that were taken away before they were ready"""
    echoes: int = 0
    refused: int = 0
    training_loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """of the newest version that was evaluated"""
    evaluated_version: int = -1
    history: list[dict[str, float]] = field(default_factory=list)
    """one row an evaluation: the metrics, and what it had taken to make the version"""
    made: "array[float]" = field(default_factory=lambda: array("d", bytes(8 * NOTES * MOST_NOTED)))
    """seconds, epochs and dollars when each of the newest versions was made, as they may still be evaluated, and of
    how many merges it is made"""
    workers: dict[NodeId, WorkerRow] = field(default_factory=dict)
    under_way: dict[TaskId, int] = field(default_factory=dict)
    """samples of every task that is neither answered nor wasted"""
    inbox: dict[UpdateId, int] = field(default_factory=dict)
    """samples of every update that is neither merged nor dropped"""
    last_refusal: str = ""

    @property
    def samples_wasted(self) -> int:
        """Of tasks that never counted."""
        return self.wasted.total()

    @property
    def epochs(self) -> float:
        """Samples merged or skipped, in passes over the data."""
        return (self.samples_merged + self.samples_skipped) / self.size

    @property
    def dollars(self) -> float:
        """What everything has cost so far."""
        return self.bill.dollars

    @property
    def dollars_per_point(self) -> float | None:
        """What each point (hundredth) of accuracy has cost; None where none is measured of a model that was trained."""
        accuracy = self.metrics.get("accuracy", 0.0) if self.versions else 0.0
        return self.dollars / (100 * accuracy) if accuracy > 0 else None

    @property
    def hours(self) -> float:
        """On the run's clock."""
        return self.seconds / 3600

    def __call__(self, record: Record) -> None:
        """Take one more record into account."""
        if isinstance(record.event, Resumed):
            self.bill.stopped(record.event, record.now)
            self.bytes_up += record.event.bytes_up_lost
            self.bytes_down += record.event.bytes_down_lost
            self.bytes_data += record.event.bytes_data_lost
        self.advance(record.now)
        self._event(record)
        for action in record.actions:
            self._action(action, record.now)

    def advance(self, now: float) -> None:
        """Time has passed, and cost its money."""
        self.bill.advance(now)
        self.seconds = now

    def summary(self) -> dict[str, Any]:
        """The closing figures as plain data; None where something is not known."""
        return {
            "accuracy": self.metrics.get("accuracy"),
            "loss": self.value("loss"),
            "metrics": self.metrics,
            "seconds": self.seconds,
            "epochs": self.epochs,
            "versions": self.versions,
            "updates": self.updates,
            "samples_assigned": self.samples_assigned,
            "samples_merged": self.samples_merged,
            "samples_wasted": self.samples_wasted,
            "wasted": {reason: self.wasted[reason] for reason in WASTES if self.wasted[reason]},
            "samples_skipped": self.samples_skipped,
            "samples_returned": self.samples_returned,
            "overwritten": self.overwritten,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "bytes_data": self.bytes_data,
            "bytes_wasted": self.bytes_wasted,
            "dollars": self.dollars,
            "dollars_lost": self.bill.dollars_lost,
            "dollars_per_point": self.dollars_per_point,
            **self.bill.presence,
            "workers_lost": self.workers_lost,
            "workers_left": self.workers_left,
            "starts_lost": self.starts_lost,
        }

    def finish(self) -> None:
        """The run is over: what was under way is wasted."""
        for waiting in (self.under_way, self.inbox):
            self.wasted["unfinished"] += sum(waiting.values())
            waiting.clear()

    def value(self, name: str) -> float | None:
        """A figure by the name that goals use, or a metric; None while it is not known."""
        if name == "loss":
            return self.training_loss if self.evaluated_version < 0 else self.metrics.get("loss")
        if name in GOAL_FIGURES:
            return float(getattr(self, GOAL_FIGURES[name]))
        return self.metrics.get(name)

    def version_of(self, name: str) -> int:
        """The version that a figure is about: a metric is known only when a few more have been made."""
        measured = name not in GOAL_FIGURES and self.evaluated_version >= 0
        return self.evaluated_version if measured else self.versions

    def _event(self, record: Record) -> None:
        match record.event:
            case Joined() | Priced() | Ordered() | Leaving() | Gone() | Lost():
                self._machine(record.event, record.now)
            case Arrived(facts):
                self._arrived(facts, record.remark == ECHO, record.now)
            case Cancelled(task, node, down, data):
                self.bytes_down += down
                self.bytes_data += data
                self.bytes_wasted += down + data
                self._wasted(task, "cancelled")
                self._answered(task, node, record.now)
            case Refused(task, reason):
                self._refused(task, reason, record)
                self._answered(task, task.rpartition(":")[0], record.now)
            case Evaluated(version, metrics):
                self._evaluated(version, metrics)
            case Resumed(samples_lost=lost):
                self.samples_assigned += lost
                self.wasted["resumed"] += lost
                self.resumed_at = self.versions
                for node in list(self.workers):
                    self._gone(node, record.now, "resumed")

    def _machine(self, event: Joined | Priced | Ordered | Leaving | Gone | Lost, now: float) -> None:
        match event:
            case Ordered(node, price, zone):
                self.bill.ordered(node, price, zone)
            case Joined(node):
                self.workers[node] = WorkerRow(since=now)
                self.bill.joined(event)
            case Priced(zone, price):
                self.bill.priced(zone, price)
            case Leaving(node):
                self._state(node, "leaving", now)
            case Gone(node) | Lost(node):
                row = self.workers.get(node)
                self.bill.gone(node)
                if row is None:
                    self.starts_lost += 1
                    self.bill.lost(node, 0.0)
                if isinstance(event, Lost):
                    if row and row.tasks:
                        self.bill.lost(node, row.begun)
                    self._lost(node, now)

    def _arrived(self, facts: Facts, echo: bool, now: float) -> None:
        self.bytes_up += facts.bytes_up
        self.bytes_down += facts.bytes_down
        self.bytes_data += facts.bytes_data
        self._answered(facts.id, facts.sender, now)
        if echo:
            self.echoes += 1
            self.bytes_wasted += facts.bytes_up + facts.bytes_down + facts.bytes_data
            self._wasted(facts.id, "late")
            return
        self.updates += 1
        self.samples_returned += self.under_way.pop(facts.id, facts.samples) - facts.samples
        self.inbox[facts.id], self.read = facts.samples, facts.read
        if facts.loss is not None:
            before = facts.loss if self.training_loss is None else self.training_loss
            self.training_loss = before + SMOOTHING * (facts.loss - before)

    def _refused(self, task: TaskId, reason: str, record: Record) -> None:
        self.refused += 1
        self.last_refusal = reason
        if any(isinstance(action, Skip) for action in record.actions):
            self.under_way.pop(task, None)  # its samples are counted there
        self._wasted(task, "refused")

    def _action(self, action: Action, now: float) -> None:
        match action:
            case Start(task):
                self.under_way[task.id] = samples = samples_in(task.spans)
                self.samples_assigned += samples
                worker = self.workers[task.node]
                worker.begun = worker.begun if worker.tasks else now
                worker.tasks.add(task.id)
                self._state(task.node, "working", now)
            case Step(shares) | Blend(shares):
                self.versions += 1
                for update in shares:
                    samples = self.inbox.pop(update)
                    self.samples_merged += samples
                    if row := self.workers.get(update.rpartition(":")[0]):
                        row.samples += samples
                self._note_version()
            case Drop(update):
                self.wasted["dropped"] += self.inbox.pop(update, 0)
            case Abort(task):
                self._wasted(task, "cancelled")
            case Skip(spans):
                self.samples_skipped += samples_in(spans)

    def _evaluated(self, version: int, metrics: Any) -> None:
        if self.versions - version < MOST_NOTED:
            seconds, epochs, dollars, _ = self._notes(version)
        else:
            seconds, epochs, dollars = self.seconds, self.epochs, self.dollars
        if version > self.evaluated_version:
            self.metrics, self.evaluated_version = dict(metrics), version
        figures = {"seconds": seconds, "versions": float(version), "epochs": epochs, "dollars": dollars}
        self.history.append(figures | dict(metrics))

    def _note_version(self) -> None:
        """The figures of this version, for when its evaluation comes."""
        base = self.versions - 1 if self.read is None else self.read
        merges = self._notes(base)[-1] + 1
        self.read, self.overwritten = None, self.versions - int(merges)
        at = NOTES * (self.versions % MOST_NOTED)
        self.made[at : at + NOTES] = array("d", [self.seconds, self.epochs, self.dollars, merges])

    def _notes(self, version: int) -> "array[float]":
        at = NOTES * (version % MOST_NOTED)
        return self.made[at : at + NOTES]

    def _lost(self, node: NodeId, now: float) -> None:
        had_notice = self._is(node, "leaving")
        if self._gone(node, now, "lost"):
            self.workers_left += had_notice
            self.workers_lost += not had_notice
            self.workers[node].state = "left" if had_notice else "lost"

    def _gone(self, node: NodeId, now: float, reason: str) -> bool:
        """It is not there any more, whyever. False if it was gone before."""
        row = self.workers.get(node)
        if row is None or row.gone:
            return False
        row.state, row.since = "lost", now
        for task in row.tasks:
            self._wasted(task, reason)
        row.tasks.clear()
        return True

    def _answered(self, task: TaskId, node: NodeId, now: float) -> None:
        if row := self.workers.get(node):
            row.tasks.discard(task)
            row.begun = now
            if not row.tasks and row.state == "working":
                self._state(node, "waiting", now)

    def _state(self, node: NodeId, state: str, now: float) -> None:
        row = self.workers.get(node)
        if row is not None and not row.gone:
            row.state, row.since = state, now

    def _is(self, node: NodeId, state: str) -> bool:
        return node in self.workers and self.workers[node].state == state

    def _wasted(self, task: TaskId, reason: str) -> None:
        self.wasted[reason] += self.under_way.pop(task, 0)


GOAL_FIGURES = {
    "seconds": "seconds",
    "hours": "hours",
    "versions": "versions",
    "epochs": "epochs",
    "samples": "samples_merged",
    "dollars": "dollars",
}
"""What an `until` may speak of beside `loss` and the job's metrics."""


def take_into_account(tally: Tally, records: Iterable[Record], log: Path) -> None:
    """Count the records of a log. CheckpointError: they are not the history of one run."""
    for record in records:
        try:
            tally(record)
        except DAMAGED:
            raise CheckpointError(
                f"{log} is damaged: {record.event} at {record.now} s does not follow from what is before it. Restore "
                "the file from a copy",
                "damaged_file",
                path=str(log),
                event=str(record.event),
                seconds=record.now,
            ) from None


def resumed_after(after_record: int, tally: Tally, lost: Sequence[Record], log: Path) -> Resumed:
    """That these further records are lost work, with what they had cost. CheckpointError as above."""
    further = deepcopy(tally)
    take_into_account(further, lost, log)
    return Resumed(
        after_record,
        given_out(lost),
        further.dollars - tally.dollars,
        further.bill.dollars_of_hub - tally.bill.dollars_of_hub,
        further.bytes_up - tally.bytes_up,
        further.bytes_down - tally.bytes_down,
        further.bytes_data - tally.bytes_data,
    )


def tally_of(records: Sequence[Record], size: int) -> Tally:
    """The figures of a whole log."""
    tally = Tally(size)
    for record in surviving(records):
        tally(record)
    return tally
