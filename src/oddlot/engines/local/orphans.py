"""Processes that a worker left behind. They are killed, because they may still write to shared memory."""

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
"""Longest time until killed processes have ended: one that waits for a disk ends later."""
MEMORY_NAME = "oddlot"
"""Name of a run's shared memory in the system."""


def adopt() -> None:
    """Become the parent of all processes that are orphaned below this one, where the system offers that (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Receive this signal when the parent dies, if the system supports that; else the closed socket shows it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def lead_group(pid: int) -> None:
    """Make a worker the leader of a process group, which it and its parent both do: one of them is first."""
    with suppress(OSError):  # it has ended
        os.setpgid(pid, pid)


def kill_group(leader: int) -> None:
    """Kill a process and those of its group: a worker leads its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def wait_until_gone(pids: Collection[int], seconds: float) -> bool:
    """Wait for the end of processes that need not be children of this one; false if some are still there then."""
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
    """Return the children of this process that are not `known`: their parents have ended. Reap ended ones."""
    return [pid for pid in _children() if pid not in known and not _reaped(pid)]


def sharing(pids: Collection[int]) -> list[int]:
    """Return the processes that still map a run's shared memory. Programs started by exec do not."""
    return [pid for pid in pids if _maps_shared_memory(pid)]


def kill(pids: Collection[int]) -> None:
    """Kill these children, which have not been reaped yet."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def kill_children() -> None:
    """Kill all processes below this one, which has adopted orphans, and wait a short time until they have ended."""
    until = time.monotonic() + END_SECONDS
    while (left := orphans(())) and time.monotonic() < until:
        kill(left)
        time.sleep(0.01)


def _children() -> Iterator[int]:
    """Return the processes whose parent is this one; none if the system has no /proc."""
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
