"""The logs of the peers of a mesh, and one history of all of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from oddlot.core.commands import Average, Blend, Step
from oddlot.core.errors import CheckpointError
from oddlot.core.events import Evaluated, Lost, PeerLost, Resumed, Stopped
from oddlot.core.records import Record
from oddlot.core.serialization import DAMAGED
from oddlot.core.tasks import NodeId, machine_of
from oddlot.history.growing_log import GrowingLog
from oddlot.history.log import read_header, read_log, surviving
from oddlot.history.run_folder import RunFolder
from oddlot.history.run_settings import SETTINGS


def read_run_log(run: RunFolder) -> list[Record]:
    """Return the records of a run: those of its log, or those of the logs of all peers as one history."""
    if not run.is_mesh:
        return list(read_log(run.log))
    check_same_run(run)
    return one_history({node: surviving(read_log(path)) for node, path in run.peer_logs().items()})


def check_same_run(run: RunFolder) -> None:
    """Raise CheckpointError if a log is of a peer that does not belong to the run: most logs agree on the machines."""
    machines = {node: _machines_of(path) for node, path in run.peer_logs().items()}
    usual = Counter(machines.values()).most_common(1)
    for node, names in machines.items():
        if machine_of(node) not in names or names != usual[0][0]:
            path = str(run.peer_log(node))
            told = f"{path} is not the log of a peer of this run, which has {', '.join(usual[0][0])}: move it away"
            raise CheckpointError(told, "unknown_peer", path=path, peer=node)


def _machines_of(log: Path) -> tuple[str, ...]:
    """Return the machines of the run, from the log of a peer."""
    try:
        return tuple(map(str, read_header(log)["conductor"]["peers"]["machines"]))
    except DAMAGED as error:
        told, reason = (
            f"{log} is damaged: its first line names no machines. Restore it from a copy",
            repr(error),
        )
        raise CheckpointError(told, "damaged_file", path=str(log), line=1, reason=reason) from None


def samples_of(run: RunFolder) -> int:
    """Return the samples of an epoch. Raise CheckpointError if the run's files do not have it."""
    path = run.path / SETTINGS if run.is_mesh else run.log
    try:
        if run.is_mesh:
            return max(1, int(run.settings()["samples"]))
        return int(read_header(path)["conductor"]["ledger"]["size"])
    except (LookupError, TypeError, ValueError):
        told = f"{path} is damaged: it has no dataset size. Restore the file from a copy"
        raise CheckpointError(told, "damaged_file", path=str(path), line=1) from None


def one_history(records: Mapping[NodeId, Sequence[Record]]) -> list[Record]:
    """Return the records of all peers in the order of time, each with its peer.

    An evaluation is numbered by the merges of all peers before it. A peer whose log ends before it has stopped was
    lost: a record at the time at which another peer noticed it says so.
    """
    numbering = Numbering()
    tagged = [replace(one, peer=node) for node, log in records.items() for one in log]
    tagged += _losses(records)
    return [numbering.numbered(one) for one in sorted(tagged, key=_order)]


def _order(record: Record) -> tuple[float, bool]:
    """Return the sort key of the common history: the time, and resumes, which all peers have at once, before all."""
    return record.now, not isinstance(record.event, Resumed)


class Numbering:
    """Numbers evaluations by the merges of all peers so far, and resumes by the records of all peers."""

    def __init__(self) -> None:
        self.merges = self.records = 0

    def numbered(self, record: Record) -> Record:
        """Return a record of the common history, whose records come in the order of time."""
        self.merges += sum(isinstance(action, Step | Blend | Average) for action in record.actions)
        number, self.records = self.records, self.records + 1
        match record.event:
            case Evaluated():
                return replace(record, event=replace(record.event, version=self.merges))
            case Resumed():  # lost work is not in this history
                return replace(record, event=replace(record.event, after_record=number))
        return record


class PeerLogs:
    """Reads new records of all peers while they write their logs."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.logs: dict[NodeId, GrowingLog] = {}
        self.numbering = Numbering()

    def skip(self, records: Iterable[Record]) -> None:
        """Read from the present end of the logs. These are the valid records before it."""
        self.read()
        self.numbering = Numbering()
        for record in records:
            self.numbering.numbered(record)

    def read(self) -> list[Record]:
        """Return the new records of all peers, in the order of time. Raise CheckpointError if a log is damaged."""
        found: list[Record] = []
        for node, path in self.run.peer_logs().items():
            log = self.logs.setdefault(node, GrowingLog(path))
            found += (replace(record, peer=node) for record in log.read() or ())
        found.sort(key=_order)
        return [self.numbering.numbered(record) for record in found]


def _losses(records: Mapping[NodeId, Sequence[Record]]) -> Iterator[Record]:
    """Yield the loss of each peer whose log ends before it has stopped, though others went on."""
    noticed: dict[NodeId, list[float]] = {}
    for log in records.values():
        for record in log:
            if isinstance(record.event, PeerLost):
                noticed.setdefault(record.event.peer, []).append(record.now)
    for node, log in records.items():
        if log and not any(isinstance(one.event, Stopped | Lost) for one in log[-2:]):
            last = log[-1].now
            at = min((when for when in noticed.get(node, ()) if when >= last), default=None)
            if at is not None:
                yield Record(at, Lost(node), peer=node)
