"""Resuming a run on a mesh: each peer restores its own state and the average of all models."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nextafter
from pathlib import Path

from oddlot.checkpoint.format import Checkpoint
from oddlot.core.conductor import Conductor
from oddlot.core.conductor_checks import read_conductor
from oddlot.core.events import Lost, Resumed
from oddlot.core.peers import IncludedModel
from oddlot.core.records import Record
from oddlot.core.support.errors import CheckpointError
from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import NodeId, machine_of
from oddlot.engines.processes.node_ids import NodeIds
from oddlot.history.included_samples import IncludedSamples, history_of
from oddlot.history.log import Log, read_header, surviving
from oddlot.history.metrics import resumed_after, tally_of
from oddlot.history.peer_logs import one_history
from oddlot.history.run_folder import RunFolder
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.weight_store import WeightStore
from oddlot.run.peer_share import MeshStart, PeerShare, progress
from oddlot.run.recipe import Recipe
from oddlot.run.resume import SavedRun, read_past, set_aside

RECENT_SECONDS = 5.0
"""A peer counts as ended if it has no records in this many seconds before a checkpoint."""


@dataclass(frozen=True)
class SavedMesh:
    """A run on a mesh up to its newest complete checkpoint."""

    now: float
    """Time of the resume, just after the last record of any peer. It includes the time of lost work."""
    start: MeshStart
    """Initial state of the peers."""
    taken: frozenset[NodeId]
    """Names of peers that do not continue."""
    earlier: list[Record]
    """The history of all peers up to the checkpoint, followed by the resume record of each log."""
    log: list[Record]
    """All records of all peers before the resume, including lost work."""


def continue_mesh(
    recipe: Recipe, folder: RunFolder, layout: Layout, machines: Sequence[str]
) -> SavedMesh | None:
    """Read the newest checkpoint of the run in the folder, and write the resume into the logs of all peers.

    - Each peer continues after its last record that the average includes. If its state in the checkpoint is older or
      missing, the state is computed from the log.
    - A peer is replaced by a new peer if its log lacks records from before the checkpoint.
    - If the run had other `machines`, a new peer on each machine gets a share of the samples that the
      average does not include.

    Return None if the run was killed before its first checkpoint was complete. Raise CheckpointError if the
    settings differ or no checkpoint is complete.
    """
    past = read_past(folder, recipe, layout)
    if past is None:
        return None
    checkpoint, logs, records = past.checkpoint, past.logs, past.records
    start = _start(past, recipe, layout)
    before = next(one.peers.machines for one in start.conductors.values())
    is_dealt_again = before != list(machines)
    if is_dealt_again:
        _check_can_deal(checkpoint, recipe, before, machines)
    short = _too_short(past, folder)
    saved_at = max(one.now for one in start.conductors.values())
    sources = [
        IncludedModel(node, min(count, len(logs[node]))) for node, count in records.items() if node in logs
    ]
    included = IncludedSamples(
        (history_of(node, folder.log_of(node), log) for node, log in logs.items()),
        sources,
    )
    cut = included.cut_of(sources)
    cut_off = _cut_off(
        {node: log for node, log in logs.items() if included.histories[node].machines == before},
        records,
        saved_at,
    )
    counts = {
        node: min(cut.get(node, 0), len(log))
        if node in records or node in cut_off
        else sum(one.now <= saved_at for one in log)
        for node, log in logs.items()
    }
    now = max((log[-1].now for log in logs.values() if log), default=saved_at)
    now = nextafter(now, inf)  # sorts the resume after all earlier records
    kept = {node: surviving(log, counts[node]) for node, log in logs.items()}
    outdated = [node for node, count in records.items() if counts.get(node, 0) > count]
    every = past.damage.keys() | records.keys()
    replaced = every if is_dealt_again else {*short, *outdated}
    conductors = {node: one for node, one in start.conductors.items() if node not in replaced}
    for node in past.damage.keys() - logs.keys():
        folder.log_of(node).rename(set_aside(folder.log_of(node)))
    for node, log in logs.items():
        if node in records or node in cut_off or len(log) > counts[node] or past.damage[node] is not None:
            path = folder.log_of(node)
            own = tuple(included.histories[node].machines)
            resumed = _resumed(PeerShare(recipe, node, own), counts[node], log, path)
            goes_on = not is_dealt_again and (node in conductors or node in (*cut_off, *outdated))
            resumed = replace(resumed, sources=tuple(sources) if goes_on else ())
            conductor = conductors.get(node) or _conductor_after(kept[node], path, recipe)
            if goes_on:
                conductors[node] = conductor
            kept[node].append(_note(conductor, resumed, now, path, len(log)))
    taken = frozenset(every) - conductors.keys()
    ids = NodeIds(machines, taken)
    for node in () if is_dealt_again else short:
        share = PeerShare(recipe, ids.next(machines.index(machine_of(node))), tuple(machines))
        conductors[share.node] = share.conductor(start.conductors[node].ledger.merged_spans(), sources)
    folder.reopen()
    folder.forget_model()
    there = set(map(machine_of, conductors))
    shares = [PeerShare(recipe, machine, tuple(machines)) for machine in machines if machine not in there]
    history = one_history(kept)
    start = replace(
        start,
        conductors=conductors,
        strikes={
            key: count for one in start.conductors.values() for key, count in one.ledger.strikes.items()
        },
        included={one.node: included.spans_in(one.first, one.stop, cut) for one in shares},
        done=progress(recipe.goal, tally_of(history, recipe.samples)) if is_dealt_again else 0.0,
        sources=sources,
        saved=frozenset(past.there),
    )
    return SavedMesh(now, start, taken, history, [one for log in logs.values() for one in log])


def _cut_off(
    logs: Mapping[NodeId, Sequence[Record]], records: Iterable[NodeId], saved_at: float
) -> list[NodeId]:
    """Return the peers that were training during a checkpoint that does not include them, one per machine."""
    there = set(map(machine_of, records))
    trained = [
        node
        for node, log in logs.items()
        if log and log[-1].now >= saved_at - RECENT_SECONDS and not isinstance(log[-1].event, Lost)
    ]
    latest = {machine_of(node): node for node in sorted(trained, key=lambda node: logs[node][-1].now)}
    return [node for machine, node in latest.items() if machine not in there]


def _start(past: SavedRun, recipe: Recipe, layout: Layout) -> MeshStart:
    """Return the initial state of the peers from the checkpoint."""
    with past.readable():
        store = WeightStore(FlatBuffer.empty(layout), recipe.rule)
        store.load_state(past.tensors)
    return MeshStart(store.weights, store.optimizer_tensors(), past.conductors)


def _check_can_deal(
    checkpoint: Checkpoint, recipe: Recipe, before: Sequence[str], machines: Sequence[str]
) -> None:
    """Raise CheckpointError if the run has shards, because other machines cannot take them over."""
    if recipe.shards > 1:
        message = (
            f"the run has {recipe.shards} shards, each of which belongs to one of the peers {', '.join(before)}, and "
            f"cannot be resumed by {', '.join(machines)}: use the same number of workers"
        )
        path = checkpoint.storage.path(checkpoint.name)
        raise CheckpointError(message, "other_machines", path=path, before=list(before), now=list(machines))


def _too_short(past: SavedRun, folder: RunFolder) -> list[NodeId]:
    """Return the peers with logs that lack records from before the checkpoint, and warn of each.

    Raise CheckpointError if copies of the logs are stored with the checkpoints.
    """
    checkpoint, records = past.checkpoint, past.records
    found = {node: len(past.logs.get(node, ())) for node in records}
    short = [node for node, count in records.items() if found[node] < count]
    for node in short:
        path, name = str(folder.log_of(node)), checkpoint.storage.path(checkpoint.name)
        fields = {"records": records[node], "sound": found[node]}
        message = (
            f"checkpoint {name} was made after {records[node]:,} records of {node}, but only {found[node]:,} "
            f"records of its log {path} are intact"
        )
        if checkpoint.log:
            message = f"{message}: resume the run in a new folder. It fetches the logs"
            raise CheckpointError(message, "log_too_short", path=name, **fields)
        message = f"{message}. A new peer takes its place. Samples in the missing records count as left out"
        warn(message, "peer_log_too_short", path=path, node=node, **fields)
    return short


def _resumed(share: PeerShare, count: int, log: Sequence[Record], path: Path) -> Resumed:
    """Return the event of a resume after the first `count` records of a peer's log."""
    kept = surviving(log, count)
    lost = surviving(log)[len(kept) :]
    event = resumed_after(count, tally_of(kept, share.samples), lost, path)
    return replace(event, settings={"epochs": share.goal.epochs, "skip_bad": share.recipe.config.skip_bad})


def _conductor_after(kept: Sequence[Record], path: Path, recipe: Recipe) -> Conductor:
    """Return the conductor of a peer, replayed from the records `kept`."""
    conductor = read_conductor(read_header(path)["conductor"], type(recipe.strategy))
    for record in kept:
        conductor.handle(record.event, record.now)
    return conductor


def _note(conductor: Conductor, resumed: Resumed, now: float, path: Path, sound: int) -> Record:
    """Write a resume into the log of a peer, after its `sound` intact records, and return its record."""
    log = Log(path, conductor, sound)
    record = conductor.handle(resumed, now)
    log(record)
    log.flush()
    log.close()
    return record
