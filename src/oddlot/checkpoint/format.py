"""The format of checkpoints. A manifest shows whether a checkpoint is complete.

`FOLDER/00000042-917-a1b2c3/` holds version 42 as it was after 917 records: `conductor.json` (the states of the
conductors of all hosts), `tensors.safetensors` (weights, rule state and inbox, with the layout in its metadata) and,
written last, `manifest.json` with the sizes and checksums (CRC-32) of all three. A random last part of the name
prevents overwriting. Processes of a mesh share its first four digits.
"""

import errno
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from safetensors import SafetensorError
from safetensors.torch import load, load_file
from torch import Tensor

from oddlot.checkpoint.local_storage import open_to_read
from oddlot.checkpoint.storage import LOG_PARTS, Storage, unreadable
from oddlot.checkpoint.tensor_files import read_metadata, tensor_file
from oddlot.core.records import HUB, HostState
from oddlot.core.support.errors import CheckpointError
from oddlot.core.support.serialization import DAMAGED, from_plain, to_plain
from oddlot.core.tasks import NodeId

FORMAT = 4
UNFINISHED = "unfinished_checkpoint"
BEGIN_ANEW = "start again: there is no older checkpoint"
CONDUCTOR, TENSORS, MANIFEST = "conductor.json", "tensors.safetensors", "manifest.json"
LAYOUT = "layout"
"""Key of the layout in the metadata of the tensors."""
NAME = re.compile(r"([0-9]{8,19})-([0-9]{1,19})-([0-9a-f]{6})")
PART = re.compile(r"(?:(?P<peer>[^/]+)\.)?[0-9]+-[0-9]+-[0-9a-f]{6}\.jsonl")
"""File name of a part of a log. For a peer's log, it starts with the name of the peer."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a checkpoint. `job` is the job's fingerprint.

    `records` is the number of earlier records of a hub or, on a mesh, the number of the checkpoint.
    """

    version: int
    records: int
    job: str
    hosts: Mapping[NodeId, HostState]
    layout: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


class Part(NamedTuple):
    """A part of the log of a run or of a peer, stored next to the checkpoints."""

    name: str
    bytes: int
    crc32: int

    @property
    def check(self) -> dict[str, int]:
        """Return the size and CRC-32, in the form of `Storage.write`."""
        return {"bytes": self.bytes, "crc32": self.crc32}

    @property
    def host(self) -> NodeId:
        """Return the host that wrote the log."""
        found = PART.fullmatch(self.name.removeprefix(f"{LOG_PARTS}/"))
        return (found["peer"] or HUB) if found else HUB

    @classmethod
    def read(cls, plain: dict[str, Any]) -> "Part":
        """Read a part from a manifest. Raise one of `DAMAGED` if it is not a part of a log."""
        part: Part = from_plain(cls, [plain["name"], plain["bytes"], plain["crc32"]])
        folder, _, name = part.name.partition("/")
        if folder != LOG_PARTS or not PART.fullmatch(name) or part.bytes < 0:
            raise ValueError(f"{part.name!r} is not a part of the log")
        return part


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint with verified checksums."""

    storage: Storage
    name: str
    version: int
    records: int
    job: str
    log: tuple[Part, ...]
    """Parts of the logs up to this checkpoint, if they are stored next to it."""
    warnings: tuple[CheckpointError, ...] = ()
    """A warning for each newer checkpoint that is damaged and was skipped. Incomplete checkpoints have no warning."""

    def log_of(self, host: NodeId) -> tuple[Part, ...]:
        """Return the parts of the log of a host."""
        return tuple(part for part in self.log if part.host == host)

    def load(self) -> Snapshot:
        """Load the snapshot. Raise CheckpointError if the files are invalid."""
        tensors_name = f"{self.name}/{TENSORS}"
        try:
            plain = json.loads(self.storage.read(f"{self.name}/{CONDUCTOR}"))
            hosts = from_plain(dict[str, HostState], plain)
            if path := self.storage.local(tensors_name):
                with path.open("rb") as file:
                    layout, tensors = json.loads(read_metadata(file)[LAYOUT]), load_file(path)
            else:
                data = self.storage.read(tensors_name)
                layout, tensors = json.loads(read_metadata(BytesIO(data))[LAYOUT]), load(data)
        except (OSError, SafetensorError, *DAMAGED) as error:
            raise unreadable(self.storage.path(self.name), error, "checkpoint ") from error
        return Snapshot(self.version, self.records, self.job, hosts, layout, tensors)


def name_of(snapshot: Snapshot, life: str) -> str:
    """Return the name of the checkpoint's folder."""
    return f"{snapshot.version:08d}-{snapshot.records}-{life}"


def save(storage: Storage, snapshot: Snapshot, life: str, log: tuple[Part, ...] = ()) -> str:
    """Write a checkpoint and return the name of its folder. After an OSError, there is no complete checkpoint.

    `life` is a random text of this hub process.
    """
    name, layout = name_of(snapshot, life), {LAYOUT: json.dumps(snapshot.layout)}
    try:
        files = {
            CONDUCTOR: storage.write(f"{name}/{CONDUCTOR}", [to_json(to_plain(dict(snapshot.hosts)))]),
            TENSORS: storage.write(f"{name}/{TENSORS}", tensor_file(snapshot.tensors, layout)),
        }
        manifest: dict[str, Any] = {"format": FORMAT, "version": snapshot.version}
        manifest |= {
            "records": snapshot.records,
            "job": snapshot.job,
            "files": files,
            "log": [part._asdict() for part in log],
        }
        storage.write(f"{name}/{MANIFEST}", [to_json({**manifest, "crc32": crc32(to_json(manifest))})])
        storage.sync(name)
        storage.sync()
    except BaseException:
        with suppress(OSError):
            storage.remove(name)
        raise
    return name


def newest(
    storage: Storage,
    records: int | None = None,
    void: Callable[[int], bool] = lambda _: False,
    with_log: bool = False,
) -> Checkpoint:
    """Return the newest complete checkpoint. Damaged checkpoints are skipped and named in its warnings.

    Checkpoints whose number of records is `void` belong to a discarded history. `with_log` requires a valid log next to
    the checkpoint. Raise CheckpointError if there is no complete one, if one cannot be read, or if it was made after
    more `records` than the log has.
    """
    damage: list[CheckpointError] = []
    try:
        names = saved(storage)
    except OSError as error:
        raise unreadable(str(storage), error) from error
    for name in reversed(names):
        if void(age(name)[0]):
            continue
        try:
            found = _verified(storage, name, with_log)
            if records is not None and found.records > records:
                _check_log_beside(found)  # without it, no other machine could resume from it
                older = [other for other in names if age(other)[0] <= records and not void(age(other)[0])]
                raise _log_too_short(found, records, bool(older))
        except Damaged as error:
            damage.append(error)
            continue
        return replace(found, warnings=tuple(each for each in damage if each.code != UNFINISHED))
    what = "no complete checkpoint" if names else "no checkpoint"
    message = [
        f"{what} in {storage}: check the path, restore one from a copy, or start again elsewhere",
        *damage,
    ]
    raise CheckpointError(
        "\n  ".join(map(str, message)), "no_complete_checkpoint", path=str(storage), damage=damage
    )


def saved(storage: Storage) -> list[str]:
    """Return the folders of all checkpoints, complete or not, the oldest first."""
    return sorted(filter(NAME.fullmatch, storage.names()), key=age)


def age(name: str) -> tuple[int, int]:
    """Return the sort key of a checkpoint: the number of earlier log records, and its version."""
    version, records, _ = name.split("-")
    return int(records), int(version)


def parts_of(storage: Storage, name: str) -> tuple[Part, ...]:
    """Return the parts of a checkpoint's log, or an empty tuple if the checkpoint is damaged. Raise OSError if it
    cannot be read."""
    try:
        manifest = _manifest(storage.read(f"{name}/{MANIFEST}"), name)
        return tuple(map(Part.read, manifest["log"]))
    except (FileNotFoundError, CheckpointError, *DAMAGED):
        return ()


def logs_of(checkpoint: Checkpoint) -> dict[NodeId, bytes]:
    """Return the logs up to this checkpoint, by host. Raise CheckpointError if they cannot be read."""
    logs = dict[NodeId, bytes]()
    try:
        for part in checkpoint.log:
            logs[part.host] = logs.get(part.host, b"") + checkpoint.storage.read(part.name)
        return logs
    except OSError as error:
        raise unreadable(str(checkpoint.storage), error, "the log in ") from error


def _check_log_beside(checkpoint: Checkpoint) -> None:
    """Raise Damaged if the log next to the checkpoint is invalid."""
    path = checkpoint.storage.path(checkpoint.name)
    try:
        for part in checkpoint.log:
            checkpoint.storage.check(part.name, part.check)
    except (OSError, CheckpointError) as error:
        raise _damaged(path, error) from error


def check_log(checkpoint: Checkpoint, log: Path, host: NodeId = HUB) -> None:
    """Raise CheckpointError unless the file is the log of a host at the time of this checkpoint."""
    parts = checkpoint.log_of(host)
    size = sum(part.bytes for part in parts)
    with open_to_read(log) as file:
        is_whole = os.fstat(file.fileno()).st_size >= size
        if not is_whole or any(crc32(file.read(part.bytes)) != part.crc32 for part in parts):
            raise _gone_on(checkpoint, f"from other records than those in {log}", log=str(log))


def _log_too_short(checkpoint: Checkpoint, records: int, is_older_there: bool) -> CheckpointError:
    """Return the error for a log with fewer valid records than the checkpoint was made after."""
    counts = {"records": checkpoint.records, "sound": records}
    if checkpoint.log:
        return _gone_on(
            checkpoint, f"after {checkpoint.records:,} records, but the log here has {records:,}", **counts
        )
    path = checkpoint.storage.path(checkpoint.name)
    return CheckpointError(
        f"checkpoint {path} was made after {checkpoint.records} records, but only {records} records of the log are "
        "intact: restore the log from a copy, or "
        + ("move that checkpoint away to resume from an older one" if is_older_there else BEGIN_ANEW),
        "log_too_short",
        path=path,
        **counts,
    )


def _gone_on(checkpoint: Checkpoint, when: str, **fields: Any) -> CheckpointError:
    path = checkpoint.storage.path(checkpoint.name)
    return CheckpointError(
        f"the run was continued elsewhere: checkpoint {path} was made {when}. Resume it in a new folder, which "
        "fetches the log",
        "resumed_on_other_machine",
        path=path,
        **fields,
    )


def to_json(plain: Mapping[str, Any]) -> bytes:
    """Return JSON, as in the files of a checkpoint."""
    return json.dumps(plain, indent=1).encode()


class Damaged(CheckpointError):
    """A checkpoint is incomplete or damaged. An older checkpoint may be complete."""


def _damaged(path: str, error: Exception) -> Damaged:
    """Return the error for a damaged checkpoint."""
    message = f"checkpoint {path} is damaged: {error}"
    if isinstance(error, CheckpointError):
        return Damaged(message, error.code, path=path, **error.fields)
    return Damaged(message, "damaged_file", path=path, reason=str(error))


def _verified(storage: Storage, name: str, with_log: bool) -> Checkpoint:
    """Return a complete checkpoint. Raise Damaged if it is damaged, or CheckpointError if it cannot be read now."""
    path = storage.path(name)
    try:
        return _checked(storage, name, with_log)
    except Damaged:
        raise
    except FileNotFoundError as error:
        missing = Path(str(error.filename or error.args[-1])).name
        if missing == MANIFEST:
            message = f"checkpoint {path} was not finished: it has no {MANIFEST}"
            raise Damaged(message, UNFINISHED, path=path) from error
        message = f"checkpoint {path} is damaged: {missing} is missing"
        raise Damaged(message, "missing_file", path=path, file=missing) from error
    except (IsADirectoryError, CheckpointError, *DAMAGED) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            message = f"checkpoint {path} is skipped: {error.filename} is a symbolic link"
            raise Damaged(message, "symbolic_link", path=path, link=error.filename) from error
        raise unreadable(path, error, "checkpoint ", ". Try again") from error


def _checked(storage: Storage, name: str, with_log: bool) -> Checkpoint:
    """Return the checkpoint if its files agree with its manifest."""
    manifest = _manifest(storage.read(f"{name}/{MANIFEST}"), storage.path(name))
    version, records = (from_plain(int, manifest[name]) for name in ("version", "records"))
    job = from_plain(str, manifest["job"])
    files = from_plain(dict[str, dict[str, int]], manifest["files"])
    if age(name) != (records, version):
        raise CheckpointError(
            "its manifest.json belongs to another checkpoint", "other_manifest", file=MANIFEST
        )
    for file in (CONDUCTOR, TENSORS):
        storage.check(f"{name}/{file}", files[file])
    log = tuple(map(Part.read, from_plain(list[dict[str, Any]], manifest["log"])))
    for part in log if with_log else ():
        storage.check(part.name, part.check)
    if with_log and not log:
        raise CheckpointError("the run's log is not next to it", "no_log_beside")
    return Checkpoint(storage, name, version, records, job, log)


def _manifest(data: bytes, path: str) -> Any:
    """Return a manifest. Raise CheckpointError if it is damaged, and Damaged if another version of oddlot wrote it."""
    try:
        manifest = json.loads(data)
        version, check = manifest["format"], manifest.pop("crc32")
    except DAMAGED:
        message = "manifest.json is truncated or invalid"
        raise CheckpointError(message, "damaged_file", file=MANIFEST) from None
    if version != FORMAT:
        message = f"checkpoint {path} has format {version}, but this version of oddlot reads format {FORMAT}"
        raise Damaged(message, "other_format", path=path, format=version)
    if check != crc32(to_json(manifest)):
        message = "the checksum of manifest.json does not match"
        raise CheckpointError(message, "wrong_checksum", file=MANIFEST)
    return manifest
