"""An independent check of the sample accounting, based on the records of a run."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from oddlot.core.commands import Blend, Skip, Start, Step
from oddlot.core.conductor import Conductor
from oddlot.core.events import Arrived
from oddlot.core.records import ECHO, Record
from oddlot.core.sample_spans import Span
from oddlot.core.tasks import TaskId

Place = tuple[int, int]
"""Epoch and position of a sample."""


class Inconsistency(NamedTuple):
    """An inconsistency in the sample accounting, with its code and a message."""

    code: str
    sentence: str

    def __str__(self) -> str:
        return self.sentence


@dataclass
class StateChecks:
    """Tracks merged samples independently of the ledger, and compares them with it."""

    given: dict[TaskId, list[Place]] = field(default_factory=dict)
    """Samples of each task. After its update has arrived, only the samples of the update."""
    merged: list[Place] = field(default_factory=list)
    skipped: int = 0
    whole: int = 0
    """Number of completely merged epochs at the start of the run."""
    rest: Counter[Place] = field(default_factory=Counter)
    """Number of merges per sample position, minus one for positions in the first `whole` epochs."""

    def note(self, record: Record, conductor: Conductor) -> None:
        """Track one record. Call this after the conductor has handled it."""
        match record.event:
            case Arrived(facts) if record.remark != ECHO:
                del self.given[facts.id][facts.samples :]
        for action in record.actions:
            if isinstance(action, Start):
                self.given[action.task.id] = list(_places(action.task.spans))
            elif isinstance(action, Skip):
                self._merge(places := list(_places(action.spans)))
                self.skipped += len(places)
            elif isinstance(action, Step | Blend):
                for update in action.shares:
                    self._merge(self.given[update])
        self._put_aside(conductor.ledger.size)

    def _merge(self, places: list[Place]) -> None:
        self.merged += places
        self.rest.update(places)

    def faults(self, conductor: Conductor) -> Iterator[Inconsistency]:
        """Yield every inconsistency."""
        yield from self._misplaced(conductor)
        yield from self._miscounted(conductor)
        yield from _mistaken_workers(conductor)

    def _put_aside(self, size: int) -> None:
        """Remove complete epochs from `rest`, so that the time of a check does not grow with the run."""
        while all(self.rest[self.whole, position] == 1 for position in range(size)):
            for position in range(size):
                del self.rest[self.whole, position]
            self.whole += 1

    def _misplaced(self, conductor: Conductor) -> Iterator[Inconsistency]:
        ledger = conductor.ledger
        places = Counter(self.rest)
        for lease in {id(lease): lease for lease in ledger.leases.values()}.values():
            places.update(_places(lease.spans))
        last = max(cursor.epoch for cursor in ledger.cursors)
        for cursor in ledger.cursors:
            places.update(_places(cursor.returned))
            places.update((cursor.epoch, position) for position in range(cursor.at, cursor.last))
            unopened = range(cursor.epoch + 1, last + 1)
            places.update(
                (epoch, position) for epoch in unopened for position in range(cursor.first, cursor.last)
            )
        epochs = range(self.whole, last + 1)
        expected = {(epoch, position) for epoch in epochs for position in range(ledger.size)}
        for place in sorted(expected | places.keys()):
            if places[place] != (place in expected):
                count = places[place] + (place[0] < self.whole)
                code = "position_repeated" if count else "position_missing"
                yield Inconsistency(code, f"position {place[1]} of epoch {place[0]} is in {count} places")

    def _miscounted(self, conductor: Conductor) -> Iterator[Inconsistency]:
        ledger = conductor.ledger
        counts = Counter(dict.fromkeys(range(self.whole), ledger.size))
        counts.update(epoch for epoch, _ in self.rest.elements())
        epoch = self.whole
        while counts[epoch] == ledger.size:
            epoch += 1
        if ledger.epoch != epoch:
            message = f"the ledger is in epoch {ledger.epoch}, but epoch {epoch} is not completely merged"
            yield Inconsistency("wrong_epoch", message)
        for ahead, count in enumerate(ledger.merged):
            if count != counts[ledger.epoch + ahead]:
                right = counts[ledger.epoch + ahead]
                message = (
                    f"the ledger counts {count} merged samples of epoch {ledger.epoch + ahead}, not {right}"
                )
                yield Inconsistency("merged_miscounted", message)
        if ledger.skipped != self.skipped:
            message = f"the ledger counts {ledger.skipped} skipped samples, not {self.skipped}"
            yield Inconsistency("skipped_miscounted", message)


def _mistaken_workers(conductor: Conductor) -> Iterator[Inconsistency]:
    held = {task for tasks in conductor.busy.values() for task in tasks}
    for node, free in conductor.slots.items():
        if free + len(conductor.busy[node]) != conductor.in_flight:
            yield Inconsistency(
                "wrong_slots", f"{node} has {free} free slots and {len(conductor.busy[node])} tasks"
            )
        if (free > 0) != (node in conductor.idle):
            message = f"{node} has {free} free slots, but is{' not' * bool(free)} among the idle"
            yield Inconsistency("wrong_idle", message)
    for task in conductor.open.keys() - held:
        yield Inconsistency("open_without_worker", f"{task} is open, but no worker has it")
    for task in conductor.ledger.leases.keys() ^ (conductor.open.keys() | conductor.inbox.keys()):
        # An open task has no lease if another task with its samples was merged.
        if task not in conductor.open:
            yield Inconsistency("lease_or_inbox", f"{task} has a lease or waits in the inbox, but not both")


def _places(spans: Iterable[Span]) -> Iterator[Place]:
    return ((span.epoch, position) for span in spans for position in range(span.start, span.stop))
