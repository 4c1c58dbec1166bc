"""Reading and atomic writing of local files, models and tensors, synced to the disk."""

import errno
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO

from safetensors import SafetensorError

from oddlot.core.support.errors import CheckpointError, JobError, UsageError
from oddlot.core.support.text import masked

if TYPE_CHECKING:
    from torch import Tensor, nn


PRIVATE = 0o600
"""Mode of a file that only its owner can read."""


def open_to_read(path: Path) -> BinaryIO:
    """Open a regular file. Raise OSError for a pipe or a device, because reading from it may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_file(path: Path) -> bytes:
    """Return the content of a regular file."""
    with open_to_read(path) as file:
        return file.read()


def open_to_append(path: Path) -> BinaryIO:
    """Open or create a file for appending. Raise OSError for a symbolic link or a pipe."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.fdopen(os.open(path, flags, 0o666), "ab")


def sync_path(path: Path) -> None:
    """Sync the content of a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and sync their entries to the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_path(folder.parent)
    if not missing:  # the folder may exist without being synced
        with suppress(PermissionError):
            sync_path(path.parent)


def replace_file(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file atomically, even if power is lost. `private`: only its owner can read it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(draft, flags, PRIVATE if private else 0o666), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        rename(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def rename(draft: Path, path: Path) -> None:
    """Rename a file within its folder, and sync the folder to the disk."""
    draft.replace(path)
    sync_path(path.parent)


def write_model(model: "nn.Module", path: Path) -> None:
    """Write the model's parameters and buffers atomically."""
    from torch import Tensor

    # Extra state that is not a tensor is omitted.
    state = {name: one for name, one in model.state_dict().items() if isinstance(one, Tensor)}
    write_tensors(state, path)


def write_tensors(state: "Mapping[str, Tensor]", path: Path) -> None:
    """Write named tensors atomically. Tied tensors are written once."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        draft.touch(exist_ok=False)
        mode = draft.stat().st_mode
        _save(state, draft)
        draft.chmod(mode)  # safetensors makes files that only their owner can read
        sync_path(draft)
        rename(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _save(state: "Mapping[str, Tensor]", path: Path) -> None:
    from safetensors.torch import save_model  # imports PyTorch

    whole = {name: one.contiguous() for name, one in state.items()}
    tensors: Any = SimpleNamespace(state_dict=lambda: whole)  # `save_model` uses only this attribute
    save_model(tensors, str(path))


def read_model(model: "nn.Module", path: Path) -> None:
    """Load a file of `write_model` into a model. Raise CheckpointError if the file is damaged."""
    from torch import Tensor

    found = read_tensors(path)
    state = {name: one for name, one in model.state_dict().items() if isinstance(one, Tensor)}
    there = {state[name].data_ptr() for name in found if name in state}  # tied tensors are written once
    wrong = found.keys() - state.keys() | {name for name, one in state.items() if one.data_ptr() not in there}
    if wrong:
        raise _damaged(path, f"other tensors than the model: {', '.join(sorted(wrong)[:3])}")
    try:
        model.load_state_dict(found, strict=False)
    except RuntimeError as error:  # different shapes
        raise _damaged(path, str(error)) from None


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """Return the tensors in a file of `write_tensors`. Raise CheckpointError if the file is damaged."""
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, reason: str) -> CheckpointError:
    message = f"{path} is damaged ({reason}): restore it from a copy, or resume the run with a later goal"
    return CheckpointError(message, "damaged_file", path=str(path), reason=reason)


def check_name(path: str, setting: str) -> None:
    """Raise UsageError if the file system does not support a path, the value of `setting`."""
    encoding = sys.getfilesystemencoding()
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        message = f"{setting} = {path!a}: the file system encoding {encoding} cannot represent it. "
        message += "Set LC_ALL=C.UTF-8, or use another name"
        raise UsageError(
            message, "unusable_name", setting, name=setting, given=path, encoding=encoding
        ) from None
    if "\0" in path:
        message = f"{setting} = {path!a}: file names must not contain null characters"
        raise UsageError(message, "unusable_name", setting, name=setting, given=path, encoding=encoding)


@contextmanager
def naming_path(path: str | Path) -> Iterator[None]:
    """Raise JobError with the path and advice if writing it fails inside this context."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        place, reason = masked(str(path)), masked(str(error))
        message = f"cannot write {place} ({reason}). Free disk space, then resume the run"
        raise JobError(message, "unwritable_file", path=place, reason=reason) from error
