"""The lock of a folder: one process holds it at a time, and the file names the process."""

import os
import platform
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path

from oddlot.checkpoint.local_storage import open_to_append, open_to_read
from oddlot.core.support.errors import UsageError

LOCK = "lock"
MAX_BYTES = 1_000
"""Largest number of bytes to read from a lock file."""


def hold(folder: Path, closing: ExitStack) -> int:
    """Hold the lock until `closing` is closed or this process ends, and return its file descriptor.

    Processes that inherit the descriptor hold the lock too. Raise UsageError if another process holds the lock, and
    OSError if the file cannot be locked or is a symbolic link.
    """
    file = closing.enter_context(open_to_append(folder / LOCK))
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        raise _in_use(folder) from None
    note_holder(file.fileno())
    return file.fileno()


def check_not_in_use(folder: Path) -> None:
    """Raise UsageError if a process holds the lock of the folder."""
    with suppress(OSError), open_to_read(folder / LOCK) as file:
        try:
            flock(file, LOCK_SH | LOCK_NB)
        except BlockingIOError:
            raise _in_use(folder) from None


def _in_use(folder: Path) -> UsageError:
    holder = _holder(folder)
    message = f"{folder} is in use by {holder}: wait until it ends, or stop it (kill -INT saves what it has)"
    return UsageError(message, "folder_in_use", path=str(folder), holder=holder)


def note_holder(lock: int, processes: Sequence[int] = ()) -> None:
    """Write the ids of this process and of its child `processes` into the lock."""
    os.ftruncate(lock, 0)
    more = f"and its processes {', '.join(map(str, processes))}\n" if processes else ""
    os.write(lock, f"process {os.getpid()} on {platform.node()}\n{more}".encode())


def read_holder(folder: Path) -> str:
    """Return the text in the lock about the process that holds it, or held it last."""
    with open_to_read(folder / LOCK) as file:
        return file.read(MAX_BYTES).decode(errors="replace")


def _holder(folder: Path) -> str:
    """Return the holder of the lock as text. On this machine, it lists the running processes."""
    message = read_holder(folder)
    process, _, rest = message.partition(" on ")
    machine, _, more = rest.partition("\n")
    living = [number for number in re.findall(r"[0-9]+", f"{process} {more}") if _is_alive(int(number))]
    if machine == platform.node() and living:
        return f"process{'es' * (len(living) > 1)} {', '.join(living)} on {machine}"
    return message.partition("\n")[0].strip() or "another process"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass  # another user's process, or not a process id
    return True
