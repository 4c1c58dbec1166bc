"""Ends of processes: with their parent, with their process group, or as orphans of a worker.

Orphans that a worker left behind are killed, because they may still write to shared memory.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
PR_SET_PDEATHSIG = 1
END_SECONDS = 10.0
"""Seconds to wait until killed processes have ended. A process that waits for a disk ends later."""
MEMORY_NAME = "oddlot"
"""Name of a run's shared memory in the system."""


def adopt() -> None:
    """Become the parent of all orphaned descendants of this process, if the system supports that (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Receive this signal when the parent dies, if the system supports that (Linux). Exit if it has died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def lead_group(pid: int) -> None:
    """Make a worker the leader of a process group. The worker and its parent both do this: either may be first."""
    with suppress(OSError):  # it has ended
        os.setpgid(pid, pid)


def kill_group(leader: int) -> None:
    """Kill the process group of a leader. Each worker leads a group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def wait_until_gone(pids: Collection[int], seconds: float) -> bool:
    """Wait at most `seconds` for the end of processes, and return whether all have ended.

    They need not be children of this process.
    """
    until = time.monotonic() + seconds
    while any(map(_runs, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def _runs(pid: int) -> bool:
    if Path("/proc/self/stat").exists():
        try:
            return (
                Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
                not in "ZX"
            )
        except OSError:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def orphans(known: Collection[int]) -> list[int]:
    """Return the children of this process that are not `known`: their parents have ended. Reap exited processes."""
    return [pid for pid in _children() if pid not in known and not _reaped(pid)]


def sharing(pids: Collection[int]) -> list[int]:
    """Return the processes that still map a run's shared memory. Programs started by exec do not."""
    return [pid for pid in pids if _maps_shared_memory(pid)]


def kill(pids: Collection[int]) -> None:
    """Kill these children. They must not have been reaped yet."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def kill_children() -> None:
    """Kill all descendants of this process, and wait a short time for their end. Call `adopt` first."""
    until = time.monotonic() + END_SECONDS
    while (left := orphans(())) and time.monotonic() < until:
        kill(left)
        time.sleep(0.01)


def _children() -> Iterator[int]:
    """Yield the children of this process. Yield nothing if the system has no /proc."""
    own = str(os.getpid())
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1] == own:
                yield int(entry.name)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _maps_shared_memory(pid: int) -> bool:
    try:
        return f"memfd:{MEMORY_NAME}" in Path(f"/proc/{pid}/maps").read_text("utf-8", "replace")
    except OSError:  # it has ended
        return False
