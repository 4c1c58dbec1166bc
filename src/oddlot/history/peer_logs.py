"""The logs of the peers of a mesh, and their merged history."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from oddlot.core.commands import Average, Blend, Step
from oddlot.core.events import Evaluated, Lost, PeerLost, Resumed, Stopped
from oddlot.core.records import HUB, Record
from oddlot.core.support.errors import CheckpointError
from oddlot.core.support.serialization import DAMAGED
from oddlot.core.tasks import NodeId, machine_of
from oddlot.history.included_samples import sources_of
from oddlot.history.log import log_changed, read_header, read_log, surviving
from oddlot.history.log_follower import LogFollower
from oddlot.history.run_folder import RunFolder
from oddlot.history.run_settings import SETTINGS


def read_run_log(run: RunFolder) -> list[Record]:
    """Return the records of a run: from its log or, on a mesh, the merged history of all peers."""
    return one_history(read_logs(run))


def read_logs(run: RunFolder) -> dict[NodeId, list[Record]]:
    """Return the records in the log of each host, including lost work. Raise CheckpointError as `check_logs` does."""
    logs = run.logs()
    check_logs(run, logs)
    return {node: list(read_log(path)) for node, path in logs.items()}


def check_logs(run: RunFolder, nodes: Collection[NodeId]) -> None:
    """Raise CheckpointError if a peer's log is damaged, or belongs to another peer or run.

    The logs of a run list the same machines. If it was resumed on other machines, the initial weights of their peers
    include models of the earlier peers. All other logs belong to another run.
    """
    peers = {node: _peers_of(run.log_of(node)) for node in nodes if node != HUB}
    usual, known = _machines_of(peers.values()) if peers else ((), set())
    for node, (owner, machines, _) in peers.items():
        path = str(run.log_of(node))
        if machine_of(owner) not in machines or machines not in known:
            message = (
                f"{path} is not the log of a peer of this run, which has {', '.join(usual)}: move it away"
            )
            raise CheckpointError(message, "unknown_peer", path=path, peer=node)
        if owner != node:
            message = (
                f"{path} is the log of {owner}, not of {node}: rename the logs, or restore them from a copy"
            )
            raise CheckpointError(message, "log_of_another_peer", path=path, peer=owner)


class _Author(NamedTuple):
    """The peer that wrote a log, from its first line."""

    node: NodeId
    machines: tuple[str, ...]
    """Machines of its run at its start."""
    sources: tuple[NodeId, ...]
    """Peers with models in its initial weights."""


def _machines_of(authors: Collection[_Author]) -> tuple[tuple[str, ...], set[tuple[str, ...]]]:
    """Return the machines that most logs of a run list, and all lists of machines that it had before or after."""
    usual = Counter(one.machines for one in authors).most_common(1)[0][0]
    by_node = {one.node: one.machines for one in authors}
    links = [{one.machines, *(by_node[peer] for peer in one.sources if peer in by_node)} for one in authors]
    known = {usual}
    while more := [link for link in links if link & known and not link <= known]:
        known.update(*more)
    return usual, known


def _peers_of(log: Path) -> _Author:
    """Return the peer that wrote a log."""
    try:
        header = read_header(log)
        peers = header["conductor"]["peers"]
        sources = tuple(source.peer for source in sources_of(header))
        return _Author(str(peers["me"]), tuple(map(str, peers["machines"])), sources)
    except DAMAGED as error:
        message = f"{log} is damaged: its first line names no peers. Restore it from a copy"
        raise CheckpointError(message, "damaged_file", path=str(log), line=1, reason=repr(error)) from None


def samples_of(run: RunFolder) -> int:
    """Return the number of samples per epoch. Raise CheckpointError if it is not in run.json."""
    try:
        return max(1, int(run.settings()["samples"]))
    except (LookupError, TypeError, ValueError):
        path = str(run.path / SETTINGS)
        message = f"{path} is damaged: it has no dataset size. Restore the file from a copy"
        raise CheckpointError(message, "damaged_file", path=path) from None


def one_history(records: Mapping[NodeId, Sequence[Record]]) -> list[Record]:
    """Return the records of a hub or, on a mesh, the valid records of all peers in the order of time.

    On a mesh, each record has its peer, and an evaluation is numbered by the merges of all peers before it. A peer was
    lost if its log ends without its stop. A `Lost` record is added at the time when another peer noticed it.
    """
    if HUB in records:
        return list(records[HUB])
    numbering = Numbering()
    valid = {node: surviving(log) for node, log in records.items()}
    tagged = [replace(one, peer=node) for node, log in valid.items() for one in log]
    tagged += _losses(valid)
    return [numbering.numbered(one) for one in sorted(tagged, key=_order)]


def _order(record: Record) -> tuple[float, bool]:
    """Return the sort key of the merged history: the time, with resumes first."""
    return record.now, not isinstance(record.event, Resumed)


class Numbering:
    """Numbers evaluations by the merges of all peers so far, and resumes by the records of all peers."""

    def __init__(self) -> None:
        self.merges = self.records = 0

    def numbered(self, record: Record) -> Record:
        """Return the next record of the merged history with its number. Records must be in the order of time."""
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
        self.logs: dict[NodeId, LogFollower] = {}
        self.numbering = Numbering()

    def skip(self, records: Iterable[Record]) -> None:
        """Skip the present contents of the logs. `records` are their valid records."""
        self.read()
        self.numbering = Numbering()
        for record in records:
            self.numbering.numbered(record)

    def read(self) -> list[Record]:
        """Return the new records of all peers, in the order of time. Raise CheckpointError if a log is damaged."""
        found: list[Record] = []
        for node, path in self.run.peer_logs().items():
            log = self.logs.setdefault(node, LogFollower(path))
            found += (replace(record, peer=node) for record in log.read() or ())
        found.sort(key=_order)
        return [self.numbering.numbered(record) for record in found]

    def read_own(self) -> list[Record]:
        """Return the new records of a run of this process. Raise JobError if another program changed a log."""
        try:
            return self.read()
        except CheckpointError as error:
            fields = error.fields
            how = f"line {fields['line']} is damaged" if "line" in fields else str(fields["reason"])
            raise log_changed(Path(fields.pop("path")), how, **fields) from None


def _losses(records: Mapping[NodeId, Sequence[Record]]) -> Iterator[Record]:
    """Yield a `Lost` record for each peer that another peer lost and that did not stop by itself."""
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
