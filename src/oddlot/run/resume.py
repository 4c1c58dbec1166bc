"""Reading the newest checkpoint and the logs of a run, to resume it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from oddlot.checkpoint.format import Checkpoint, Snapshot, check_log, newest
from oddlot.core.conductor import Conductor
from oddlot.core.conductor_checks import read_conductor
from oddlot.core.events import Averaged, Joined, Ordered
from oddlot.core.records import HUB, Record
from oddlot.core.support.errors import CheckpointError, ProtocolError, UsageError
from oddlot.core.support.serialization import DAMAGED
from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import NodeId
from oddlot.history.log import has_records, is_void, read_sound
from oddlot.history.peer_logs import check_logs
from oddlot.history.run_folder import RunFolder
from oddlot.history.segments import Segment, settings_of, started_segments
from oddlot.model.flat_buffer import Layout
from oddlot.model.regrouping import regrouped
from oddlot.run.recipe import Recipe

MAX_NAMED = 3


def in_layout(
    checkpoint: Checkpoint, snapshot: Snapshot, layout: Layout, *, regroup: bool
) -> Mapping[str, Tensor]:
    """Return the tensors of the checkpoint in the layout of the job's model.

    With `regroup`, the parameter groups may differ. Raise CheckpointError if other tensors do. The field `different` of
    the error maps each tensor name to its dtype and shape in the run and now. If the checkpoint has no layout, another
    error is raised.
    """
    if checkpoint.job == layout.fingerprint:
        return snapshot.tensors
    saved = snapshot.layout
    was, now = (_described(each, groups=not regroup) for each in (saved, layout.to_json()))
    if regroup and was == now:
        return regrouped(snapshot.tensors, saved, layout)
    different = {name: (was.get(name), now.get(name)) for name in {**was, **now}}
    different = {name: pair for name, pair in different.items() if pair[0] != pair[1]}
    lines = [f"\n  {name}: {pair[0]} in the run, {pair[1]} now" for name, pair in different.items()]
    more = f"\n  and {len(lines) - MAX_NAMED} more" if len(lines) > MAX_NAMED else ""
    message = "".join(lines[:MAX_NAMED]) + more or " their order differs"
    path = checkpoint.storage.path(checkpoint.name)
    raise CheckpointError(
        f"checkpoint {path} has other tensors than the job's model:{message}\nResume with the original model, or use "
        "another folder",
        "other_job",
        path=path,
        different=different,
    )


def _described(layout: Mapping[str, Any], *, groups: bool) -> dict[str, str]:
    """Return the dtype and shape of each tensor, with its role unless trainable and, if asked, its group unless 0."""
    found = {}
    for entry in layout["entries"]:
        section = layout["sections"][entry["section"]]
        role = "" if section["role"] == "trainable" else f"{section['role']} "
        group = f" in group {section['group']}" if groups and section["group"] else ""
        found[str(entry["name"])] = f"{role}{section['dtype']} {list(entry['shape'])}{group}"
    return found


@dataclass(frozen=True)
class SavedRun:
    """The newest complete checkpoint of a run, and the logs of its hosts."""

    checkpoint: Checkpoint
    there: list[str]
    """Names of all checkpoints."""
    tensors: Mapping[str, Tensor]
    conductors: Mapping[NodeId, Conductor]
    """Conductors of the hosts in the checkpoint."""
    records: Mapping[NodeId, int]
    """Number of records in the log of each of these hosts when the checkpoint was made."""
    logs: Mapping[NodeId, list[Record]]
    """Intact records, by host, without empty logs."""
    damage: Mapping[NodeId, CheckpointError | None]
    """Damage of each log, by host. None if the log is intact."""
    segments: Sequence[Segment]
    """Segments of the run up to the checkpoint."""
    starts_segment: bool
    """Whether the run continues with other settings than those of the last one of these segments."""

    @property
    def nodes(self) -> frozenset[NodeId]:
        """Return all names of workers in the log."""
        log = self.logs[HUB]
        return frozenset(one.event.node for one in log if isinstance(one.event, Joined | Ordered))

    def readable(self) -> AbstractContextManager[None]:
        """Return a context that turns errors of reading the state into CheckpointError."""
        return readable(self.checkpoint)


@contextmanager
def readable(checkpoint: Checkpoint) -> Iterator[None]:
    """Raise CheckpointError if the code inside fails because a checkpoint has no valid state of a run."""
    try:
        yield
    except (*DAMAGED, ProtocolError, UsageError, RuntimeError) as error:
        path = checkpoint.storage.path(checkpoint.name)
        message = (
            f"checkpoint {path} has no state of this run ({error!r}): move it away to resume from an older one, or "
            "start again in another folder"
        )
        raise CheckpointError(message, "no_state", path=path, reason=repr(error)) from error


def warn_of_damage(checkpoint: Checkpoint, logs: Iterable[CheckpointError | None]) -> None:
    """Warn of damaged logs, and of newer checkpoints that are damaged and skipped."""
    for each in filter(None, (*logs, *checkpoint.warnings)):
        message = f"{each}. Resuming from {checkpoint.name}"
        warn(
            message, "damaged_checkpoint_skipped", checkpoint=checkpoint.name, damage=each.code, **each.fields
        )


def read_past(
    folder: RunFolder, recipe: Recipe, layout: Layout, new_segment: bool = False
) -> SavedRun | None:
    """Read the state of a run of this job and strategy. The goal and the engine may differ.

    With `new_segment`, the settings of a segment may differ, too. Return None if the run was killed before its first
    checkpoint was complete. Raise CheckpointError if other settings differ or no checkpoint is complete.
    """
    folder.check_settings(recipe.identity(layout), None if recipe.traits.mesh else new_segment)
    sound = {host: _read_sound(host, path) for host, path in folder.logs().items()}
    logs = {host: records for host, (records, _) in sound.items() if records is not None}
    damage = {host: error for host, (_, error) in sound.items()}
    check_logs(folder, logs)
    if _ended_before_checkpoint(folder, logs):
        folder.restart()
        return None
    if (error := damage.get(HUB)) is not None and HUB not in logs:
        raise error
    there = folder.checkpoint_names()
    checkpoint = _newest(folder, logs, damage)
    warn_of_damage(checkpoint, damage.values())
    snapshot = checkpoint.load()
    with readable(checkpoint):
        segments = _segments_until(folder, logs, checkpoint)
        # After a kill, the checkpoint may be older than the newest segment.
        starts_segment = settings_of(segments[-1]) != settings_of(recipe.segment(layout))
        tensors = in_layout(checkpoint, snapshot, layout, regroup=starts_segment)
        changed = _changed_settings(recipe) if starts_segment else {}
        kind = type(recipe.strategy)
        conductors = {
            host: read_conductor(one.conductor | changed, kind) for host, one in snapshot.hosts.items()
        }
        if (HUB in logs) != (HUB in conductors) or not conductors:
            raise ValueError("it is of other hosts")
    records = {host: one.records for host, one in snapshot.hosts.items()}
    return SavedRun(checkpoint, there, tensors, conductors, records, logs, damage, segments, starts_segment)


def newest_segment(folder: RunFolder) -> Segment | None:
    """Return the segment of the newest complete checkpoint. None if the run was killed before its first checkpoint.

    Raise CheckpointError if no checkpoint is complete.
    """
    sound = {host: _read_sound(host, path) for host, path in folder.logs().items()}
    logs = {host: records for host, (records, _) in sound.items() if records is not None}
    if _ended_before_checkpoint(folder, logs):
        return None
    checkpoint = _newest(folder, logs, {host: error for host, (_, error) in sound.items()})
    return _segments_until(folder, logs, checkpoint)[-1]


def _segments_until(
    folder: RunFolder, logs: Mapping[NodeId, Sequence[Record]], checkpoint: Checkpoint
) -> list[Segment]:
    return folder.segments(1 + started_segments(logs.get(HUB, ()), checkpoint.records))


def _changed_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the changes to the saved state of a conductor for a new segment. `Resumed` makes the same changes.

    The class of the earlier strategy is then not needed.
    """
    segment = recipe.new_segment
    return {"strategy": segment.strategy, "batch": segment.batch, "scheduled": segment.scheduled}


def _newest(
    folder: RunFolder,
    logs: Mapping[NodeId, Sequence[Record]],
    damage: Mapping[NodeId, CheckpointError | None],
) -> Checkpoint:
    """Return the newest complete checkpoint. Raise CheckpointError if a log is older, or of another run."""
    own = logs.get(HUB)
    try:
        among = () if own is None else (len(own), partial(is_void, own))
        checkpoint = newest(folder.storage, *among)
        for host in logs:
            check_log(checkpoint, folder.log_of(host), host)
    except CheckpointError as error:
        if (cut := damage.get(HUB)) is None:
            raise
        raise error.with_message(f"{cut}\n{error}", line=cut.fields["line"]) from error
    return checkpoint


def _ended_before_checkpoint(folder: RunFolder, logs: Mapping[NodeId, Sequence[Record]]) -> bool:
    """Return whether the run ended before its first checkpoint was complete.

    Until then, a hub logs nothing, and a mesh makes one average at most.
    """
    averages = sum(isinstance(one.event, Averaged) for log in logs.values() for one in log)
    if averages > 1 or not folder.is_unsaved:
        return False
    return folder.is_mesh or not (folder.has_learned or has_records(folder.log))


def _read_sound(host: NodeId, path: Path) -> tuple[list[Record] | None, CheckpointError | None]:
    """Return the intact records of a log, or None without any, and the error about its damage, if any."""
    try:
        return read_sound(path)
    except CheckpointError as error:
        if host == HUB:
            return None, error
        if error.code != "damaged_file":
            raise
        return None, error.with_message(
            f"{path} has no intact record and is renamed to {set_aside(path).name}"
        )


def set_aside(path: Path) -> Path:
    """Return the new name of a log without intact records."""
    return path.with_name(f"{path.name}.damaged")
