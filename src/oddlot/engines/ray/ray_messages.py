"""Messages of Ray itself, such as stack dumps of crashed processes. They are written to a file."""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = "ray.log"
"""Name of the file in the folder with the output of workers."""
CRASH = re.compile(r"\*\*\* (SIG[A-Z]+) received|Fatal Python error: (.+)")
"""First line of the stack dump of a crashed process, by Ray or by Python's faulthandler."""
DUMP = re.compile(
    r"\[\d{4}-\d\d-\d\d [\d:,]+ [A-Z] \d+ \d+\] "
    r"|(Current thread|Thread) 0x|Stack \(most recent call first\)|  File \".*\", line \d+ in "
)
"""Start of a line of Ray's C++ log, or of the stack dump of a process that continues to run."""
LOST_WORKER = re.compile(r"Worker IP address: (\S+).*Worker PID: (\d+)", re.DOTALL)
AGAIN_SECONDS = 60.0
"""Seconds until a line is shown again, because several of Ray's processes report a loss."""
MAX_CHARACTERS = 160


class RayMessages:
    """Splits messages that Ray would print. Ray's own messages go to the file, with one printed line for each loss."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.path: Path | None = None
        """The file. None if the run has no folder, or no folder yet."""
        self._clock = clock
        self._shown: dict[tuple[str, ...], float] = {}
        """Times of shown losses, by the worker's address and process id or by the line."""
        self._crashed: set[tuple[str, ...]] = set()
        """Outputs that ended with a stack dump, each as an address, a process id and whether it is stderr."""

    def rest(self, message: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the message with its printed lines only, and the lines about losses."""
        lines = [str(line) for line in message["lines"]]
        own, kept, losses = (
            ([], lines, self._events(lines)) if is_event(message) else self._split(message, lines)
        )
        if kept:
            self._keep(message.get("actor_name") or str(message.get("pid")), kept)
        return {**message, "lines": own}, losses

    def _events(self, lines: list[str]) -> list[str]:
        """Return the printed lines about events of the cluster."""
        shown = []
        for line in lines:
            message, worker = first_sentence(line), LOST_WORKER.search(line)
            if worker:
                shown += self._once(worker.groups(), f"{message} Process {worker[2]} on {worker[1]}")
            else:
                shown += self._once((message,), message)
        return shown

    def _split(self, message: Mapping[str, Any], lines: list[str]) -> tuple[list[str], list[str], list[str]]:
        """Return a worker's own lines, the lines of stack dumps and of Ray, and the lines about its crash.

        All output after a crash is its stack dump: Ray splits the dump, and even its lines, between messages.
        """
        own, kept, losses = list[str](), list[str](), list[str]()
        worker = str(message.get("ip")), str(message.get("pid"))
        output = *worker, str(message.get("is_err"))
        for line in lines:
            crash = None if output in self._crashed else CRASH.match(line)
            if crash:
                self._crashed.add(output)
                losses += self._once(worker, f"crashed with {crash[1] or crash[2]}")
            (kept if output in self._crashed or DUMP.match(line) else own).append(line)
        return own, kept, losses

    def _once(self, key: tuple[str, ...], line: str) -> list[str]:
        now = self._clock()
        if now - self._shown.get(key, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return []
        self._shown[key] = now
        return [f"{line} (more in {self.path})" if self.path else line]

    def _keep(self, source: str, lines: list[str]) -> None:
        if self.path is None:
            return
        with suppress(OSError):  # a full disk does not end the run
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.writelines(f"({source}) {line}\n" for line in lines)


def is_event(message: Mapping[str, Any]) -> bool:
    """Return whether a message reports an event of the cluster, rather than the output of a worker."""
    return str(message.get("pid")) == "raylet"


def first_sentence(text: str) -> str:
    """Return the first sentence of a message, shortened."""
    return re.split(r"(?<=\.)\s|\n", text.strip(), maxsplit=1)[0][:MAX_CHARACTERS]
