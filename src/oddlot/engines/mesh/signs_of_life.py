"""Signs of life of a peer's process for its launcher, on the pipe on which it has reported its address.

A thread sends them, so that a peer that saves a large model sends them too. A process that is stopped, or has code that
holds the interpreter's lock, sends none.
"""

import json
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, NoReturn

from oddlot.engines.local.orphans import kill_children

PERIOD_SECONDS = 0.5
"""Time between two signs of life."""


class SignsOfLife:
    """Reports to the launcher what a peer does. After `begin`, it reports the longest recent step at intervals."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        os.set_blocking(fd, False)  # a launcher that is stopped reads nothing

    def begin(self, address: str, step_seconds: Callable[[], float]) -> None:
        """Report the address of the peer, and from then on `step_seconds()`."""
        self.report(address=address)
        threading.Thread(target=self._work, args=(step_seconds,), daemon=True).start()

    def report(self, **what: Any) -> None:
        """Report fields of `LifeReader`, unless the launcher has ended or reads nothing."""
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self.fd, json.dumps(what).encode() + b"\n")

    def _work(self, step_seconds: Callable[[], float]) -> None:
        while True:
            time.sleep(PERIOD_SECONDS)
            self.report(step=step_seconds())


class LifeReader:
    """Reads the signs of life of a process, without waiting."""

    def __init__(self, pipe: IO[bytes], now: float) -> None:
        self.pipe = pipe
        self.heard_at = now
        self.address = ""
        """Address at which the peer listens. Empty: not known yet."""
        self.step_seconds = 0.0
        """Longest recent step of the peer, in seconds. 0: it has finished none."""
        self.is_evaluating = False
        self.hung = ""
        """The work that hangs, so that the process has ended itself: "start", "task" or "evaluation"."""
        self.has_failed = False
        """Whether it ended because of an error, which ends the run."""
        self._unread = b""
        os.set_blocking(pipe.fileno(), False)

    def read(self, now: float) -> None:
        """Read what has come since the last call."""
        with suppress(BlockingIOError):
            while data := os.read(self.pipe.fileno(), 1 << 16):
                self._unread += data
                self.heard_at = now
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, sign: dict[str, Any]) -> None:
        self.address = self.address or str(sign.get("address", ""))
        self.step_seconds = float(sign.get("step", self.step_seconds))
        self.is_evaluating = bool(sign.get("evaluating", self.is_evaluating))
        self.hung = str(sign.get("hung", self.hung))
        self.has_failed = self.has_failed or "failed" in sign


def read_line(file: IO[str], is_stopped: Callable[[], bool]) -> str:
    """Wait for a line. Return an empty text at the end of the file, or once `is_stopped()`."""
    while not is_stopped():
        if select.select([file], [], [], PERIOD_SECONDS)[0]:
            return file.readline()
    return ""


def end_process() -> NoReturn:
    """Kill the processes that this one has started, and this one, without any cleanup that could hang."""
    kill_children()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")
