"""A saved run on disk: whole or not there.

`FOLDER/00000042/` holds version 42: `conductor.json` (the books), `tensors.safetensors` (weights, rule state and
inbox, with the layout in its metadata) and, written last, `manifest.json` with size and CRC-32 of the other two
and of itself.
Everything is written into a folder of a temporary name, synced, and renamed.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zlib import crc32

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from oddlot.core.errors import CheckpointError

FORMAT = 1
REPLACED = ".replaced"
"""the end of a folder's name while a checkpoint of the same version takes its place"""
_FILES = ("conductor.json", "tensors.safetensors")
_PIECE_BYTES = 1 << 24
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a checkpoint holds. `job` is the job's fingerprint, `extra` is the caller's own, JSON-able."""

    version: int
    job: str
    conductor: Mapping[str, Any]
    layout: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint on disk, its checksums verified."""

    folder: Path
    version: int
    job: str
    extra: dict[str, Any]
    warnings: tuple[str, ...] = ()
    """a sentence for each newer checkpoint that is damaged and was passed over"""

    def load(self) -> Snapshot:
        """What was saved. CheckpointError when the files hold anything else."""
        try:
            conductor = json.loads((self.folder / "conductor.json").read_text())
            layout = _metadata(self.folder / "tensors.safetensors")["layout"]
            tensors = load_file(self.folder / "tensors.safetensors")
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(f"checkpoint {self.folder} cannot be read: {error}") from error
        return Snapshot(self.version, self.job, conductor, json.loads(layout), tensors, self.extra)


def save(folder: Path, snapshot: Snapshot) -> Path:
    """Write a checkpoint into `folder`/version and return that path. OSError leaves nothing half-written there.

    A checkpoint of the same version is replaced.
    """
    final = folder / f"{snapshot.version:08d}"
    draft = folder / f".{final.name}.partial"
    for left_behind in folder.glob(".*.partial"):
        shutil.rmtree(left_behind, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        files = {
            "conductor.json": _write(draft / "conductor.json", [_json(snapshot.conductor)]),
            "tensors.safetensors": _write(draft / "tensors.safetensors", _safetensors(snapshot)),
        }
        manifest = {"format": FORMAT, "version": snapshot.version, "job": snapshot.job, "files": files}
        manifest["extra"] = dict(snapshot.extra)
        _write(draft / "manifest.json", [_json({**manifest, "crc32": crc32(_json(manifest))})])
        _sync_path(draft)
        old = folder / f"{final.name}{REPLACED}"
        if final.exists():
            final.rename(old)
        draft.rename(final)
        _sync_path(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return final


def newest(folder: Path, job: str | None = None, records: int | None = None) -> Checkpoint:
    """The newest whole checkpoint in `folder`; damaged ones are passed over and named in its warnings.

    CheckpointError: there is no whole one, it belongs to another job than the one whose fingerprint is given, or it was
    made after more `records` than the log has.
    """
    _put_back(folder)
    warnings: list[str] = []
    for path in sorted(_saved(folder), key=_version, reverse=True):
        try:
            manifest = _verified(path)
        except CheckpointError as error:
            warnings.append(str(error))
            continue
        made_after = manifest["extra"].get("records", 0)
        if records is not None and made_after > records:
            raise CheckpointError(
                f"checkpoint {path} was made after {made_after} records, but only {records} of the log are sound: "
                "restore the log from a copy, or move that checkpoint away to go on from an older one"
            )
        if job is not None and manifest["job"] != job:
            raise CheckpointError(
                f"checkpoint {path} belongs to another job: its fingerprint is {manifest['job']}, this job's is "
                f"{job}; resume with the job that began the run, or choose another folder"
            )
        return Checkpoint(path, manifest["version"], manifest["job"], manifest["extra"], tuple(warnings))
    told = "".join(f"\n  {warning}" for warning in warnings)
    raise CheckpointError(
        f"no whole checkpoint in {folder}: begin anew with force=True (--force), or in another folder{told}"
    )


class BackgroundSaver:
    """Writes checkpoints in a thread, one at a time, and keeps the newest few.

    The `log` is synced first, so that no checkpoint is made after more records than are on the disk. What fails (a
    full disk) is a sentence in `problems()` and never ends the run.
    """

    def __init__(self, folder: Path, log: Path | None = None, keep: int = 3) -> None:
        self.folder = folder
        self.log = log
        self.keep = keep
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        self._staged: list[Tensor] = []
        self._problems: list[str] = []

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def save(self, snapshot: Snapshot) -> bool:
        """Copy the snapshot and write it in the background. False, and nothing done, while one is being written.

        What was given may change as soon as this returns.
        """
        if self.busy:
            return False
        self._collect()
        staged = Snapshot(
            snapshot.version,
            snapshot.job,
            json.loads(_json(snapshot.conductor)),
            dict(snapshot.layout),
            self._stage(snapshot.tensors),
            json.loads(_json(snapshot.extra)),
        )
        self._writing = self._thread.submit(self._write, staged)
        return True

    def problems(self) -> list[str]:
        """What went wrong since the last call, as sentences."""
        if not self.busy:
            self._collect()
        problems, self._problems = self._problems, []
        return problems

    def close(self) -> list[str]:
        """Wait for the last checkpoint; the `problems` that are left."""
        self._thread.shutdown(wait=True)
        return self.problems()

    def _write(self, snapshot: Snapshot) -> None:
        if self.log is not None:
            _sync_path(self.log)
        save(self.folder, snapshot)
        for path in sorted(_saved(self.folder), key=_version)[: -self.keep]:
            shutil.rmtree(path)

    def _collect(self) -> None:
        writing, self._writing = self._writing, None
        if writing is None or (error := writing.exception()) is None:
            return
        if not isinstance(error, OSError):
            raise error
        self._problems.append(
            f"a checkpoint could not be written into {self.folder}: {error}; the run goes on"
        )

    def _stage(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies in memory that is used again from checkpoint to checkpoint."""
        spare, staged = self._staged, {}
        for name, tensor in tensors.items():
            fits = (
                i for i, old in enumerate(spare) if (old.dtype, old.shape) == (tensor.dtype, tensor.shape)
            )
            at = next(fits, None)
            staged[name] = torch.empty_like(tensor, device="cpu") if at is None else spare.pop(at)
            staged[name].copy_(tensor)
        self._staged = list(staged.values())
        return staged


def _json(plain: Mapping[str, Any]) -> bytes:
    return json.dumps(plain, indent=1).encode()


def _safetensors(snapshot: Snapshot) -> Iterator[bytes | memoryview]:
    """The file piece by piece, so that no second copy of the tensors is made (`safetensors.save_file` makes one)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "layout": json.dumps(snapshot.layout)}}
    end = 0
    for name, tensor in snapshot.tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for tensor in snapshot.tensors.values():
        data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), _PIECE_BYTES):
            yield data[start : start + _PIECE_BYTES]


def _metadata(path: Path) -> Any:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return header["__metadata__"]


def _write(path: Path, pieces: "Iterator[bytes | memoryview] | list[bytes]") -> dict[str, int]:
    """Write and sync a file; its size and CRC-32."""
    size = check = 0
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            size += len(piece)
            check = crc32(piece, check)
        _sync(file)
    return {"bytes": size, "crc32": check}


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_back(folder: Path) -> None:
    """Undo a replacement that was not finished; clear away after one that was."""
    for old in folder.glob(f"*{REPLACED}"):
        name = old.with_name(old.name.removesuffix(REPLACED))
        if name.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(name)


def _saved(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.is_dir() and path.name.isdecimal()]


def _version(path: Path) -> int:
    return int(path.name)


def _verified(path: Path) -> dict[str, Any]:
    """The manifest of a whole checkpoint. CheckpointError: what is wrong with it."""
    try:
        try:
            manifest = json.loads((path / "manifest.json").read_bytes())
            manifest["format"]
        except (ValueError, TypeError):
            raise ValueError("manifest.json is cut off, or holds something else") from None
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {manifest['format']}, this version of oddlot reads {FORMAT}"
            )
        if manifest.pop("crc32") != crc32(_json(manifest)) or manifest["version"] != int(path.name):
            raise ValueError("the checksum of manifest.json does not match")
        for name in _FILES:
            _check_file(path / name, manifest["files"][name])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
        raise CheckpointError(f"checkpoint {path} is damaged: {reason}") from error
    assert isinstance(manifest, dict)
    return manifest


def _check_file(path: Path, expected: Mapping[str, int]) -> None:
    size = check = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            size += len(piece)
            check = crc32(piece, check)
    if size != expected["bytes"]:
        raise ValueError(f"{path.name} has {size} of {expected['bytes']} bytes")
    if check != expected["crc32"]:
        raise ValueError(f"the checksum of {path.name} does not match")
