"""The lock of a folder, in which one process works at a time."""

import os
import platform
from contextlib import ExitStack
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from oddlot.checkpoint.disk import open_to_append, open_to_read
from oddlot.core.errors import UsageError

LOCK = "lock"
MAX_BYTES = 1_000
"""Bytes of the lock file that are read."""


def hold(folder: Path, closing: ExitStack) -> None:
    """Hold the lock until `closing` is closed or this process ends. Raise UsageError if another process holds it.

    Raise OSError if it cannot be held, or is a symbolic link.
    """
    file = closing.enter_context(open_to_append(folder / LOCK))
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        holder = read_holder(folder).strip() or "another process"
        told = f"{folder} is in use by {holder}: wait until it ends, or stop it"
        raise UsageError(told, "folder_in_use", path=str(folder), holder=holder) from None
    file.truncate(0)
    os.write(file.fileno(), f"process {os.getpid()} on {platform.node()}\n".encode())


def read_holder(folder: Path) -> str:
    """Return the line about the process that holds the lock, or held it last."""
    with open_to_read(folder / LOCK) as file:
        return file.read(MAX_BYTES).decode(errors="replace")
