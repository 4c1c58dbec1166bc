"""That every sample of every epoch reached the model exactly once, shown from the log alone.

Nothing of the ledger is believed here: what each task was given, what its update brought and what was merged are read
from the records, and the positions are laid side by side.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path

from oddlot.core.commands import Blend, Drop, Skip, Start, Step
from oddlot.core.conductor import ECHO
from oddlot.core.errors import CheckpointError, OddlotError
from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.core.spans import Span, samples_in, split
from oddlot.core.tasks import TaskId, UpdateId

MAX_FAULTS = 10
MAX_TO_COME = 3
"""epochs under way that are told one by one"""


@dataclass(frozen=True)
class Proof:
    """What the log shows about a data set of `size` samples."""

    size: int
    whole: int
    """epochs of which every position was merged or skipped"""
    merged: int
    """samples in merged updates, all epochs"""
    skipped: int
    """samples that were given up, their numbers being bad again and again"""
    faults: tuple[OddlotError, ...]
    """positions that count more than once or, in epochs that were to be whole, not at all"""
    to_come: tuple[tuple[int, int], ...] = ()
    """of the epochs under way: which one, and how many of its positions no merged update has yet"""

    def __str__(self) -> str:
        if self.faults:
            return "NOT exactly once: " + "; ".join(map(str, self.faults))
        beyond = self.merged + self.skipped - self.whole * self.size
        more = f"{beyond:,} positions of epochs under way are merged, none twice{self._still}"
        skipped = f", or was skipped ({self.skipped:,})" if self.skipped else ""
        if not self.whole:
            return f"not twice: no epoch is whole yet; {more}"
        epochs = "epoch 0" if self.whole == 1 else f"each of the epochs 0 to {self.whole - 1}"
        where = f"every one of the {self.size:,} positions of {epochs}"
        return f"exactly once: {where} is in one merged update{skipped}" + (f"; {more}" if beyond else "")

    @property
    def _still(self) -> str:
        """What is to come of the oldest epochs: a hole that lasts is seen here."""
        told = [f"{count:,} of epoch {epoch}" for epoch, count in self.to_come[:MAX_TO_COME]]
        told += ["more of later ones"] if len(self.to_come) > MAX_TO_COME else []
        return f" (to come: {', '.join(told)})" if told else ""


Piece = tuple[int, int, UpdateId]
"""start, stop (exclusive) and whose they are, of the positions of an epoch that count"""


def prove(records: Iterable[Record], size: int, epochs: int = 0) -> Proof:
    """Lay out the records of a history that holds (`log.surviving`) over `size` samples an epoch.

    So many `epochs` are to be whole: a hole in them is a fault. LookupError: the records are no history.
    """
    sheets = Sheets()
    for record in records:
        sheets.note(record)
    faults, holes, merged, whole = list(sheets.faults), list[tuple[int, int]](), 0, 0
    for epoch, pieces in sorted(sheets.pieces.items()):
        faults += _overlaps(epoch, sorted(pieces), size)
        here = sum(stop - start for start, stop, _ in pieces)
        merged += here
        whole += epoch == whole and here == size
        holes += [(epoch, size - here)] if here < size else []
    last = max([epochs, *(epoch + 1 for epoch in sheets.pieces)])
    absent = (epoch for epoch in range(last) if epoch not in sheets.pieces)
    holes = sorted([*holes, *((epoch, size) for epoch in islice(absent, MAX_FAULTS))])
    faults += [_hole(epoch, count) for epoch, count in holes if epoch < epochs]
    return Proof(
        size, whole, merged - sheets.skipped, sheets.skipped, tuple(faults[:MAX_FAULTS]), tuple(holes)
    )


def prove_log(log: Path, records: Iterable[Record], size: int, epochs: int = 0) -> Proof:
    """The same of a log on disk. CheckpointError: its records are no history of one run."""
    try:
        return prove(records, size, epochs)
    except (LookupError, TypeError, ValueError) as error:
        told = f"{log} is damaged ({error!r}): restore the file from a copy"
        raise CheckpointError(told, "damaged_file", path=str(log), reason=repr(error)) from None


@dataclass
class Sheets:
    """Where every position went, followed from record to record."""

    pieces: defaultdict[int, list[Piece]] = field(default_factory=lambda: defaultdict(list))
    """that count, by epoch"""
    skipped: int = 0
    faults: list[OddlotError] = field(default_factory=list)
    given: dict[TaskId, tuple[Span, ...]] = field(default_factory=dict)
    arrived: dict[UpdateId, tuple[Span, ...]] = field(default_factory=dict)
    """what updates have brought that are neither merged nor dropped"""

    def note(self, record: Record) -> None:
        """Follow one record."""
        match record.event:
            case Arrived(facts) if record.remark != ECHO:
                self.arrived[facts.id] = split(self.given[facts.id], facts.samples)[0]
        for action in record.actions:
            match action:
                case Start(started):
                    self.given[started.id] = started.spans
                case Drop(update):
                    self.arrived.pop(update, None)
                case Skip(spans):
                    self.skipped += samples_in(spans)
                    self._count("those that were skipped", spans)
                case Step(shares) | Blend(shares):
                    for update in shares:
                        self._merge(update)

    def _merge(self, update: UpdateId) -> None:
        if update not in self.arrived:
            told = f"{update} is merged, and has not arrived, or not since it was merged or dropped"
            self.faults.append(OddlotError(told, "merged_before_it_arrived", update=update))
        self._count(update, self.arrived.pop(update, ()))

    def _count(self, whose: str, spans: tuple[Span, ...]) -> None:
        for epoch, start, stop in spans:
            self.pieces[epoch].append((start, stop, whose))


def _overlaps(epoch: int, pieces: list[Piece], size: int) -> Iterator[OddlotError]:
    for (_, stop, one), (start, end, other) in pairwise(pieces):
        if start < stop:
            twice = {"epoch": epoch, "first": start, "last": min(stop, end) - 1, "updates": (one, other)}
            told = f"positions {start} to {twice['last']} of epoch {epoch} are in {one} and in {other}"
            yield OddlotError(told, "merged_twice", **twice)
    if pieces and not 0 <= pieces[0][0] <= max(stop for _, stop, _ in pieces) <= size:
        told = f"epoch {epoch} has positions beyond its {size} samples"
        yield OddlotError(told, "no_such_position", epoch=epoch)
    if epoch < 0:
        yield OddlotError(f"there is no epoch {epoch}", "no_such_epoch", epoch=epoch)


def _hole(epoch: int, count: int) -> OddlotError:
    told = f"{count} positions of epoch {epoch} are in no merged update"
    return OddlotError(told, "not_merged", epoch=epoch, count=count)
