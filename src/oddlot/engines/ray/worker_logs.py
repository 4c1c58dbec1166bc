"""Copies of the output of workers that failed, which their machines may take with them."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from oddlot.core.tasks import NodeId
from oddlot.engines.ray import internals
from oddlot.engines.ray.actor import Started, end_of, host
from oddlot.engines.ray.aside import aside
from oddlot.engines.respawn import CRASHES

CRASHED = re.compile(
    rb"(?:\*\*\* (SIG[A-Z]+) received|Fatal Python error: (Segmentation fault|Aborted|Bus error))"
)
NAMES = {b"Segmentation fault": "SIGSEGV", b"Aborted": "SIGABRT", b"Bus error": "SIGBUS"}


class WorkerLogs:
    """Writes the output of failed workers into a folder, as `w1.log`. None: it is not kept."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._host = host()
        self._fetches: list[Any] = []
        """References to output of other machines, without which it would not come."""

    def keep(self, node: NodeId, started: Started | None) -> int | None:
        """Keep the output of a worker that died. Return its exit code if its output has one, as `-SIGSEGV`.

        On another machine it is fetched meanwhile, and the exit code stays unknown.
        """
        if started is None:
            return None
        if started.host == self._host:
            log = end_of(started.files)
            self.write(node, log)
            return _crash_of(log)
        aside(lambda: self._fetch(node, started))
        return None

    def _fetch(self, node: NodeId, started: Started) -> None:
        """Request the output of a worker on another machine."""
        there = NodeAffinitySchedulingStrategy(started.ray_node, soft=False)
        fetch = ray.remote(end_of).options(num_cpus=0, scheduling_strategy=there, max_retries=0)
        result = fetch.remote(list(started.files))
        self._fetches.append(result)
        internals.on_completed(result, lambda log: self.write(node, log))

    def write(self, node: NodeId, log: object) -> None:
        """Write the output of a worker into the folder."""
        if self.folder is None or not isinstance(log, bytes) or not log:
            return
        with suppress(OSError):  # of a full disk: the run goes on
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{node}.log").write_bytes(log)


def _crash_of(log: bytes) -> int | None:
    """Return the exit code of a crash, the negative number of its signal. None: the output names no signal."""
    found = CRASHED.findall(log)
    if not found:
        return None
    name = found[-1][0].decode() or NAMES[found[-1][1]]
    return next((-number for number in CRASHES if number.name == name), None)
