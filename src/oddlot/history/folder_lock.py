"""The lock of a folder, which one process holds at a time."""

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
"""Largest number of bytes of a lock file that are read."""


def hold(folder: Path, closing: ExitStack) -> int:
    """Hold the lock until `closing` is closed or this process ends. Raise UsageError if another process holds it.

    Return the lock's descriptor. Processes that inherit it hold the lock too. Raise OSError if the file cannot be
    locked or is a symbolic link.
    """
    file = closing.enter_context(open_to_append(folder / LOCK))
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        raise _in_use(folder) from None
    note_holder(file.fileno())
    return file.fileno()


def check_not_in_use(folder: Path) -> None:
    """Raise UsageError if a process holds the lock. A folder without a lock is not in use."""
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
    """Return the text about the process that holds the lock, or held it last."""
    with open_to_read(folder / LOCK) as file:
        return file.read(MAX_BYTES).decode(errors="replace")


def _holder(folder: Path) -> str:
    """Return the holder of the lock as text: on this machine, its running processes."""
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
        pass  # a process of another user, or not a process id
    return True
