"""Atomic files, and errors for files that cannot be written."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from oddlot.checkpoint.disk import rename, sync_path
from oddlot.core.errors import JobError, UsageError
from oddlot.core.masked_urls import masked

if TYPE_CHECKING:
    from torch import nn


def write_model(model: "nn.Module", path: Path) -> None:
    """Write the model's parameters and buffers atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    try:
        draft.touch(exist_ok=False)
        mode = draft.stat().st_mode
        _save(model, draft)
        draft.chmod(mode)  # as other files: safetensors lets only the owner read
        sync_path(draft)
        rename(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _save(model: "nn.Module", path: Path) -> None:
    """Write the tensors of the model's state, tied ones once. Extra state is left out."""
    from safetensors.torch import save_model  # PyTorch comes with it
    from torch import Tensor

    state = {name: one.contiguous() for name, one in model.state_dict().items() if isinstance(one, Tensor)}
    tensors: Any = SimpleNamespace(state_dict=lambda: state)  # nothing else of a module is asked for
    save_model(tensors, str(path))


def check_name(path: str, setting: str) -> None:
    """Raise UsageError if the file system cannot have a file of this name. `setting` is the setting that has it."""
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
    """Raise JobError, with advice, if an error inside shows that the path cannot be written."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        place, reason = masked(str(path)), masked(str(error))
        told = f"cannot write {place} ({reason}). Free disk space, then resume the run"
        raise JobError(told, "unwritable_file", path=place, reason=reason) from error
