"""Audit of a run on a mesh: each peer merged every sample of its share exactly once per epoch."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from oddlot.core.errors import OddlotError
from oddlot.core.records import Record
from oddlot.core.tasks import NodeId
from oddlot.history.audit import MAX_FAULTS, Proof, Sheets, prove_log
from oddlot.history.log import read_header, read_log, surviving
from oddlot.history.run_folder import RunFolder


def prove_peers(run: RunFolder, size: int) -> Proof:
    """Audit the logs of all peers of a run with `size` samples per epoch.

    The faults are those of single peers: a peer that took over from a lost one may repeat samples of it. An epoch is
    complete if the peers together have merged every sample. Raise CheckpointError if a log is damaged.
    """
    logs = {node: surviving(read_log(path)) for node, path in run.peer_logs().items()}
    faults: list[OddlotError] = []
    for node, records in logs.items():
        path = run.peer_log(node)
        ledger = read_header(path)["conductor"]["ledger"]
        lane = ledger["lanes"][0]
        proof = prove_log(path, records, int(ledger["size"]), 0, int(lane["first"]), int(lane["epoch"]))
        faults += proof.faults
    return _together(logs, size, faults)


def _together(logs: Mapping[NodeId, Sequence[Record]], size: int, faults: Sequence[OddlotError]) -> Proof:
    """Return the proof for all peers, from the positions that any of them has merged."""
    merged, skipped = 0, 0
    pieces: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for records in logs.values():
        sheets = Sheets()
        for record in records:
            sheets.note(record)
        skipped += sheets.skipped
        for epoch, found in sheets.pieces.items():
            pieces[epoch] += ((start, stop) for start, stop, _ in found)
            merged += sum(stop - start for start, stop, _ in found)
    missing = {epoch: size - _covered(found) for epoch, found in pieces.items()}
    whole = 0
    while missing.get(whole) == 0:
        whole += 1
    to_come = tuple((epoch, count) for epoch, count in sorted(missing.items()) if count)
    return Proof(size, whole, merged - skipped, skipped, tuple(faults[:MAX_FAULTS]), to_come)


def _covered(pieces: Sequence[tuple[int, int]]) -> int:
    """Return how many positions are in any of the intervals."""
    ordered = sorted(pieces)
    ends = [0]
    for _, stop in ordered:
        ends.append(max(ends[-1], stop))
    overlap = sum(max(0, min(end, stop) - start) for end, (start, stop) in zip(ends, ordered, strict=False))
    return sum(stop - start for start, stop in ordered) - overlap
