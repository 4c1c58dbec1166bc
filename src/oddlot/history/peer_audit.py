"""Verify from the logs of all peers of a mesh how often the saved model includes each sample."""

import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from oddlot.core.events import Averaged
from oddlot.core.records import Record
from oddlot.core.support.errors import CheckpointError, OddlotError
from oddlot.core.support.serialization import DAMAGED
from oddlot.core.tasks import NodeId, machine_of, worker_number
from oddlot.history.audit import MAX_FAULTS, Proof, Sheets, holes, overlaps, prove_log
from oddlot.history.included_samples import (
    Cut,
    IncludedSamples,
    MergedInterval,
    PeerHistory,
    sources_of_average,
)
from oddlot.history.log import read_log, surviving
from oddlot.history.run_folder import SUMMARY, RunFolder
from oddlot.history.run_outcome import complete_epochs, read_ending


def prove_run(run: RunFolder, size: int, records: Sequence[Record] | None = None) -> Proof:
    """Audit a run with `size` samples per epoch.

    `records` are the valid records of a hub. If None, they are read. Raise CheckpointError if a log is damaged.
    """
    ending = read_ending(run)
    if not run.is_mesh:
        records = surviving(read_log(run.log)) if records is None else records
        return prove_log(run.log, records, size, complete_epochs(ending))
    try:
        return prove_model(IncludedSamples.read(run), size, ending)
    except DAMAGED as error:
        message = f"the logs in {run.path} are damaged ({error!r}): restore them from a copy"
        raise CheckpointError(message, "damaged_file", path=str(run.path), reason=repr(error)) from None


def prove_model(included: IncludedSamples, size: int, ending: Mapping[str, Any]) -> Proof:
    """Audit the samples that the saved model of a mesh includes. `ending` is the summary of the run.

    Without a summary, because the run has not ended or was killed, audit the average of the newest peers.
    """
    faults = [fault for history in included.histories.values() for fault in _own_faults(history.records)]
    cut, part, wrong = _saved(included, ending)
    # Merges of averaged peers after the average were late, not lost.
    averaged = set(ending.get("peers_averaged") or ())
    gone = dict.fromkeys(included.histories.keys() - averaged, sys.maxsize)
    every, saved = included.pieces(cut | gone), included.pieces(cut)
    skipped = sum(stop - start for _, start, stop, update in saved if update == Sheets.SKIPPED)
    partly = sum(stop - start for _, start, stop, _ in included.pieces(part, beyond=cut))
    wrong += [_merged_in_part(partly)] if partly else []
    proof = _proof(size, complete_epochs(ending), every, saved, [*wrong, *faults], skipped)
    lost = sum(stop - start for _, start, stop, _ in every) - sum(stop - start for _, start, stop, _ in saved)
    missing = _missing(included.histories.values(), averaged)
    return replace(proof, lost=lost, missing=missing, is_saved=bool(averaged))


def _merged_in_part(count: int) -> OddlotError:
    message = f"{count:,} samples of lost peers are in some layers of the model only, or in some layers twice"
    return OddlotError(message, "merged_in_part", samples=count)


def _missing(peers: Iterable[PeerHistory], averaged: Collection[NodeId]) -> tuple[NodeId, ...]:
    """Return the newest peer of each machine that has no peer in the saved average.

    Machines that were left out when the run was resumed do not count.
    """
    there = set(map(machine_of, averaged))
    newest = {
        machine_of(one.node): one.node for one in sorted(peers, key=lambda one: worker_number(one.node))
    }
    gone = {machine for machine in newest if _was_left_out(machine, peers, averaged)}
    return tuple(sorted(peer for machine, peer in newest.items() if machine not in there | gone))


def _was_left_out(machine: str, peers: Iterable[PeerHistory], averaged: Collection[NodeId]) -> bool:
    known = [one.machines for one in peers if one.node in averaged and one.machines]
    return bool(known) and not any(machine in machines for machines in known)


def _own_faults(records: Sequence[tuple[int, Any]]) -> list[OddlotError]:
    """Return the errors within a peer's log."""
    sheets = Sheets()
    for _, record in records:
        sheets.note(record)
    return sheets.faults


def _saved(included: IncludedSamples, ending: Mapping[str, Any]) -> tuple[Cut, Cut, list[OddlotError]]:
    """Return the cut of all layers of the saved model, the cut of at least one layer, and errors.

    There is an error if no log has the average of the summary.
    """
    peers = ending.get("peers_averaged")
    if not peers:
        return included.newest, {}, []
    finals = [
        record.event
        for history in included.histories.values()
        for _, record in history.records
        if isinstance(record.event, Averaged) and record.event.is_final
    ]
    for average in finals:
        if list(average.peers) == list(peers):
            sources = sources_of_average(average)
            return included.cut_of(sources), included.part_of(sources), []
    message = f"no log has the final average of {', '.join(map(str, peers))}, which {SUMMARY} names"
    return included.newest, {}, [OddlotError(message, "average_not_logged", peers=peers)]


def _proof(
    size: int,
    claimed: int,
    every: Sequence[MergedInterval],
    saved: Sequence[MergedInterval],
    faults: list[OddlotError],
    skipped: int,
) -> Proof:
    """Return the proof. `saved` are the intervals in the saved model, and `every` the intervals of all merges."""
    pieces, others = _by_epoch(saved), _by_epoch(every)
    epochs = sorted({*pieces, *others, *range(min(claimed, MAX_FAULTS))})
    missing = {epoch: size - _covered(pieces.get(epoch, ())) for epoch in epochs}
    left_out = 0
    for epoch in epochs:
        faults += overlaps(epoch, sorted(pieces.get(epoch, [])), 0, size)
        if epoch < claimed:
            left_out += missing[epoch]
        else:
            left_out += missing[epoch] - (size - _covered(others.get(epoch, ())))
    faults += holes((epoch, count) for epoch, count in missing.items() if epoch < claimed)
    whole = 0
    while missing.get(whole) == 0:
        whole += 1
    merged = sum(stop - start for _, start, stop, _ in saved)
    to_come = tuple((epoch, count) for epoch, count in missing.items() if count)
    return Proof(size, whole, merged - skipped, skipped, tuple(faults[:MAX_FAULTS]), to_come, left_out)


def _by_epoch(pieces: Sequence[MergedInterval]) -> dict[int, list[tuple[int, int, str]]]:
    found: defaultdict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for epoch, start, stop, update in pieces:
        found[epoch].append((start, stop, update))
    return found


def _covered(pieces: Sequence[tuple[int, int, str]]) -> int:
    """Return the number of positions in the union of the intervals."""
    total = end = 0
    for start, stop, _ in sorted(pieces):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total
