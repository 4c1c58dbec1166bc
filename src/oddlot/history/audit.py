"""Verify from a log that every sample of every epoch was merged exactly once.

The audit does not use the ledger. It collects the positions that were assigned to each task, the positions that its
update covers, and the merged updates, and compares the intervals.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import ClassVar

from oddlot.core.commands import Blend, Drop, Skip, Start, Step
from oddlot.core.events import Arrived
from oddlot.core.records import ECHO, Record
from oddlot.core.sample_spans import Span, samples_in, split
from oddlot.core.support.errors import CheckpointError, OddlotError
from oddlot.core.tasks import NodeId, TaskId, UpdateId

MAX_FAULTS = 10
MAX_TO_COME = 3
"""Largest number of incomplete epochs that a verdict lists."""
MAX_MISSING = 8
"""Largest number of peers that a verdict lists."""
HOLE = "not_merged"
"""Code of the error about samples that were never merged."""


@dataclass(frozen=True)
class Proof:
    """The result of an audit, for a dataset of `size` samples. `str()` returns it as a sentence."""

    size: int
    whole: int
    """Number of complete epochs: every sample was merged or skipped."""
    merged: int
    """Samples in merged updates, over all epochs."""
    skipped: int
    """Samples that were skipped because their updates repeatedly had NaN or infinity."""
    faults: tuple[OddlotError, ...]
    """Errors: samples that were merged more than once or, in complete epochs, never."""
    to_come: tuple[tuple[int, int], ...] = ()
    """Incomplete epochs, with the number of samples that are not merged yet."""
    left_out: int = 0
    """On a mesh, samples that were assigned to lost peers and that the saved model does not include."""
    missing: tuple[NodeId, ...] = ()
    """Lost peers: the newest peer of each machine without a peer in the saved average."""

    lost: int = 0
    """On a mesh, samples in merges of lost peers that the saved model does not include."""
    is_saved: bool = True
    """Whether the saved model was audited. False, on a mesh without one: the newest models of all peers were audited
    together."""

    @property
    def is_exactly_once(self) -> bool:
        """Whether the model includes each expected sample exactly once."""
        return not self.faults and not self.left_out

    def __str__(self) -> str:
        message = self._text()
        return (
            message
            if self.is_saved
            else f"No model is saved. In the newest models of the peers together: {message}"
        )

    def _text(self) -> str:
        if self.left_out and all(fault.code == HOLE for fault in self.faults):
            planned = self.merged + self.skipped + self.left_out
            trained = f"The model was trained on {self.merged:,} of {planned:,} samples, on each once"
            return trained + f"; {self.skipped:,} were skipped" * bool(self.skipped) + self._left_out
        if self.faults:
            faults = "; ".join(map(str, self.faults))
            return f"Samples were NOT merged exactly once{self._left_out}: {faults}"
        skipped = f" or skipped ({self.skipped:,})" if self.skipped else ""
        if not self.whole:
            return f"No epoch is complete and no sample was merged twice{self._open}"
        epochs = "epoch 0" if self.whole == 1 else f"each of epochs 0-{self.whole - 1}"
        beyond = self.merged + self.skipped > self.whole * self.size
        return f"All {self.size:,} samples were merged exactly once{skipped} in {epochs}{self._open * beyond}"

    @property
    def _left_out(self) -> str:
        """Return the number of samples that the model of a mesh does not include, as text."""
        whose = ", ".join(self.missing[:MAX_MISSING]) + ", ..." * (len(self.missing) > MAX_MISSING)
        message = f"; {self.left_out:,} samples of {whose or 'lost peers'} were left out"
        return message if self.left_out else ""

    @property
    def _open(self) -> str:
        """Return the numbers of samples that are not merged yet in the oldest epochs, as text."""
        message = [f"{count:,} of epoch {epoch}" for epoch, count in self.to_come[:MAX_TO_COME]]
        message += ["later epochs"] if len(self.to_come) > MAX_TO_COME else []
        return f"; samples still open: {', '.join(message)}" if message else ""


Piece = tuple[int, int, UpdateId]
"""Start, stop (exclusive) and owner of an interval of positions in an epoch."""


def prove(records: Iterable[Record], size: int, epochs: int = 0) -> Proof:
    """Audit the records of a valid history (`log.surviving`) with `size` samples per epoch.

    A missing sample in the first `epochs` epochs is an error. Raise LookupError if the records are not a history.
    """
    sheets = Sheets()
    for record in records:
        sheets.note(record)
    faults, missing, merged, whole = list(sheets.faults), list[tuple[int, int]](), 0, 0
    for epoch, pieces in sorted(sheets.pieces.items()):
        faults += overlaps(epoch, sorted(pieces), 0, size)
        here = sum(stop - start for start, stop, _ in pieces)
        merged += here
        whole += epoch == whole and here == size
        missing += [(epoch, size - here)] if here < size else []
    last = max([epochs, *(epoch + 1 for epoch in sheets.pieces)])
    absent = (epoch for epoch in range(last) if epoch not in sheets.pieces)
    missing = sorted([*missing, *((epoch, size) for epoch in islice(absent, MAX_FAULTS))])
    faults += holes((epoch, count) for epoch, count in missing if epoch < epochs)
    return Proof(
        size, whole, merged - sheets.skipped, sheets.skipped, tuple(faults[:MAX_FAULTS]), tuple(missing)
    )


def prove_log(log: Path, records: Iterable[Record], size: int, epochs: int = 0) -> Proof:
    """Audit a log on disk. Raise CheckpointError if its records are not the history of one run."""
    try:
        return prove(records, size, epochs)
    except (LookupError, TypeError, ValueError) as error:
        message = f"{log} is damaged ({error!r}): restore the file from a copy"
        raise CheckpointError(message, "damaged_file", path=str(log), reason=repr(error)) from None


@dataclass
class Sheets:
    """The intervals of every epoch that were merged or skipped, collected record by record."""

    SKIPPED: ClassVar = "the skipped samples"
    """Owner of skipped intervals."""
    pieces: defaultdict[int, list[Piece]] = field(default_factory=lambda: defaultdict(list))
    """Merged or skipped intervals, by epoch."""
    skipped: int = 0
    faults: list[OddlotError] = field(default_factory=list)
    given: dict[TaskId, tuple[Span, ...]] = field(default_factory=dict)
    arrived: dict[UpdateId, tuple[Span, ...]] = field(default_factory=dict)
    """Samples of updates that are neither merged nor dropped yet."""

    latest: list[tuple[int, int, int, UpdateId]] = field(default_factory=list)
    """Epoch, start, stop and owner of the intervals of the last record."""

    def note(self, record: Record) -> None:
        """Process one record."""
        self.latest.clear()
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
                    self._count(self.SKIPPED, spans)
                case Step(shares) | Blend(shares):
                    for update in shares:
                        self._merge(update)

    def _merge(self, update: UpdateId) -> None:
        if update not in self.arrived:
            message = f"{update} was merged before it arrived, or was merged or dropped before"
            self.faults.append(OddlotError(message, "merged_before_it_arrived", update=update))
        self._count(update, self.arrived.pop(update, ()))

    def _count(self, whose: str, spans: tuple[Span, ...]) -> None:
        for epoch, start, stop in spans:
            self.pieces[epoch].append((start, stop, whose))
            self.latest.append((epoch, start, stop, whose))


def overlaps(epoch: int, pieces: list[Piece], first: int, end: int) -> Iterator[OddlotError]:
    """Yield an error for each overlap of the sorted intervals, and for positions outside the range [first, end)."""
    for (_, stop, one), (start, other_stop, other) in pairwise(pieces):
        if start < stop:
            last = min(stop, other_stop) - 1
            which = f"samples {start}-{last}" if last > start else f"sample {start}"
            message = (
                f"{which} of epoch {epoch} {'were' if last > start else 'was'} merged twice (in {one} "
                f"and {other})"
            )
            found = {"epoch": epoch, "first": start, "last": last, "updates": (one, other)}
            yield OddlotError(message, "merged_twice", **found)
    if pieces and not first <= pieces[0][0] <= max(stop for _, stop, _ in pieces) <= end:
        message = f"epoch {epoch} has positions beyond its {end - first} samples"
        yield OddlotError(message, "no_such_position", epoch=epoch)
    if epoch < 0:
        yield OddlotError(f"the log names epoch {epoch}, which does not exist", "no_such_epoch", epoch=epoch)


def holes(missing: Iterable[tuple[int, int]]) -> list[OddlotError]:
    """Return the errors of incomplete epochs. Consecutive epochs that lack the same number of samples share one."""
    spells: list[tuple[int, int, int]] = []
    for epoch, count in missing:
        if spells and spells[-1][1:] == (epoch - 1, count):
            spells[-1] = spells[-1][0], epoch, count
        elif count:
            spells.append((epoch, epoch, count))
    return [_hole(*spell) for spell in spells]


def _hole(first: int, last: int, count: int) -> OddlotError:
    epochs = f"epoch {first}" if first == last else f"each of epochs {first}-{last}"
    message = f"{count:,} sample{'s were' if count > 1 else ' was'} never merged in {epochs}"
    return OddlotError(message, HOLE, epoch=first, last_epoch=last, count=count)
