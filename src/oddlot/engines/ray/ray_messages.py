"""Messages of Ray itself, such as stack dumps of processes that crash. They are kept in a file."""

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = "ray.log"
"""Name of the file, in the folder of the output of workers."""
DUMP = re.compile(
    r"\*\*\* SIG[A-Z]+ received|PC: @|\s+@ +0x[0-9a-f]+|\[\d{4}-\d\d-\d\d [\d:,]+ [A-Z] \d+ \d+\] |Fatal Python error"
    r"|(Current thread|Thread) 0x|Stack \(most recent call first\)|  File \".*\", line \d+ in |Extension modules:"
)
"""The beginning of a line of a stack dump, by Ray or by Python's faulthandler, or of a line of Ray's C++ log."""
CRASH = re.compile(r"\*\*\* (SIG[A-Z]+) received")
AGAIN_SECONDS = 60.0
"""Seconds in which the same line is shown once: several of Ray's processes report a loss."""
MAX_CHARACTERS = 160


class RayMessages:
    """Splits messages that Ray would print: its own go into the file, with a line for the terminal, others stay."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.path: Path | None = None
        """The file. None: there is no run folder, or not yet."""
        self._clock = clock
        self._shown: dict[str, float] = {}
        """Lines that were shown, each with its time."""

    def rest(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return the message with the lines that are printed."""
        source, lines = str(message.get("pid")), [str(line) for line in message["lines"]]
        own = source == "raylet"
        kept = lines if own else [line for line in lines if DUMP.match(line)]
        shown = [] if own else [line for line in lines if not DUMP.match(line)]
        if kept:
            self._keep(message.get("actor_name") or source, kept)
        for line in kept:
            crash = CRASH.match(line)
            if own or crash:
                shown += self._once(f"crashed with {crash[1]}" if crash else first_sentence(line))
        return {**message, "lines": shown}

    def _once(self, line: str) -> list[str]:
        now = self._clock()
        if now - self._shown.get(line, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return []
        self._shown[line] = now
        return [f"{line} (more in {self.path})" if self.path else line]

    def _keep(self, source: str, lines: list[str]) -> None:
        if self.path is None:
            return
        with suppress(OSError):  # of a full disk: the run goes on
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.writelines(f"({source}) {line}\n" for line in lines)


def first_sentence(text: str) -> str:
    """Return the first sentence of a message, shortened."""
    return re.split(r"(?<=\.)\s|\n", text.strip(), maxsplit=1)[0][:MAX_CHARACTERS]
