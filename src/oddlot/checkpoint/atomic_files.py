"""Atomic files, and errors for files that cannot be written."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from oddlot.checkpoint.disk import rename, sync_path
from oddlot.core.errors import CheckpointError, JobError, UsageError
from oddlot.core.masked_urls import masked

if TYPE_CHECKING:
    from torch import Tensor, nn


def write_model(model: "nn.Module", path: Path) -> None:
    """Write the model's parameters and buffers atomically."""
    from torch import Tensor

    # Extra state, which is no tensor, is left out.
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
    tensors: Any = SimpleNamespace(state_dict=lambda: whole)  # `save_model` uses nothing else
    save_model(tensors, str(path))


def read_model(model: "nn.Module", path: Path) -> None:
    """Load a file of `write_model` into a model. Raise CheckpointError if the file is damaged."""
    from torch import Tensor

    found = read_tensors(path)
    state = {name: one for name, one in model.state_dict().items() if isinstance(one, Tensor)}
    there = {state[name].data_ptr() for name in found if name in state}  # a tied tensor was written once
    wrong = found.keys() - state.keys() | {name for name, one in state.items() if one.data_ptr() not in there}
    if wrong:
        raise _damaged(path, f"other tensors than the model: {', '.join(sorted(wrong)[:3])}")
    try:
        model.load_state_dict(found, strict=False)
    except RuntimeError as error:  # other shapes
        raise _damaged(path, str(error)) from None


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """Return the tensors in a file of `write_tensors`. Raise CheckpointError if the file is damaged."""
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: Path, reason: str) -> CheckpointError:
    told = f"{path} is damaged ({reason}): restore it from a copy, or resume the run with a later goal"
    return CheckpointError(told, "damaged_file", path=str(path), reason=reason)


def check_name(path: str, setting: str) -> None:
    """Raise UsageError if the file system does not support this path, the value of the setting `setting`."""
    encoding = sys.getfilesystemencoding()
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        told = f"{setting} = {path!a}: the file system encoding {encoding} cannot represent it. "
        told += "Set LC_ALL=C.UTF-8, or use another name"
        raise UsageError(
            told, "unusable_name", setting, name=setting, given=path, encoding=encoding
        ) from None
    if "\0" in path:
        told = f"{setting} = {path!a}: file names must not contain null characters"
        raise UsageError(told, "unusable_name", setting, name=setting, given=path, encoding=encoding)


@contextmanager
def told_where(path: str | Path) -> Iterator[None]:
    """Turn an error inside this context into a JobError with advice: the path cannot be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        place, reason = masked(str(path)), masked(str(error))
        told = f"cannot write {place} ({reason}). Free disk space, then resume the run"
        raise JobError(told, "unwritable_file", path=place, reason=reason) from error
