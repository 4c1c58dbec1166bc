"""Helpers that run Python programs in other processes and find their descendants."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent
HANG_SECONDS = 120


@contextmanager
def program(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program during the test, and kill its process group afterwards. With `-c`, it may import `tests`."""
    command = [sys.executable, *map(str, arguments)]
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(  # type: ignore[call-overload]
        command, cwd=ROOT, env=surroundings, text=True, start_new_session=True, **pipes
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def says(process: subprocess.Popen[str], text: str) -> str:
    """Wait until the program prints a line that contains `text`, and return the line."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    assert process.stderr is not None
    raise AssertionError(f"the program ended without saying {text!r}:\n{process.stderr.read()}")


def children(parent: int) -> dict[int, list[int]]:
    """Return the children of a process and of each of its descendants, by process id."""
    families: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # the process has just ended
                about = (entry / "stat").read_text().rpartition(")")[2].split()
                if about[0] != "Z":
                    families.setdefault(int(about[1]), []).append(int(entry.name))
    below, found = [parent], {}
    while below:
        one = below.pop()
        found[one] = families.get(one, [])
        below += found[one]
    return found


def descendants(parent: int) -> list[int]:
    """Return the descendants of a process."""
    return [child for family in children(parent).values() for child in family]


@contextmanager
def ends(pids: list[int]) -> Iterator[None]:
    """Assert that the body ends all of these processes, and wait for their ends."""
    handles = [os.pidfd_open(pid) for pid in pids]
    try:
        yield
        for pid, handle in zip(pids, handles, strict=True):
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            assert poll.poll(HANG_SECONDS * 1000), f"process {pid} is still there"
    finally:
        for handle in handles:
            os.close(handle)
