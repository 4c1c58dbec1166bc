"""One process at a time works in a folder: it holds the folder's lock."""

import os
import platform
from contextlib import ExitStack
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from oddlot.checkpoint.disk import open_to_append, open_to_read
from oddlot.core.errors import UsageError

LOCK = "lock"
MAX_BYTES = 1_000
"""of the file that are read"""


def hold(folder: Path, closing: ExitStack) -> None:
    """Hold the lock until `closing` is closed or this process ends, however it does. UsageError: another one holds it.

    OSError: it cannot be held, or is a symbolic link.
    """
    file = closing.enter_context(open_to_append(folder / LOCK))
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        holder = read_holder(folder).strip() or "another process"
        told = f"{folder} is in use by {holder}: wait for its end, or end it"
        raise UsageError(told, "folder_in_use", path=str(folder), holder=holder) from None
    file.truncate(0)
    os.write(file.fileno(), f"process {os.getpid()} on {platform.node()}\n".encode())


def read_holder(folder: Path) -> str:
    """The line in which the process that holds the lock, or has held it last, names itself."""
    with open_to_read(folder / LOCK) as file:
        return file.read(MAX_BYTES).decode(errors="replace")
