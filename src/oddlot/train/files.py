"""Small files that are there whole or not at all, and what to do where they cannot be written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from oddlot.core.errors import JobError
from oddlot.train.storage import sync_path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, which is there whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        sync_path(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def told_where(path: str | Path) -> Iterator[None]:
    """JobError, with what to do, where something inside cannot be written to that path."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        told, reason = f"cannot write {path} ({error}): make room, then resume the run", str(error)
        raise JobError(told, "unwritable_file", path=str(path), reason=reason) from error
