"""Messages between a peer process and its launcher, and the end of a hung process.

A thread sends signs of life, so that a peer also sends them while it saves a large model. A process that is stopped, or
has code that holds Python's GIL, sends none.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

from oddlot.engines.local.fork_server import receive
from oddlot.engines.local.messages import Say, decode, encode
from oddlot.engines.local.orphans import kill_children
from oddlot.engines.local.shared_memory import open_parcel
from oddlot.engines.processes.user_code_error import plain_failure

PERIOD_SECONDS = 0.5
"""Time between two signs of life."""


class LauncherLink:
    """The connection of a peer to its launcher. After `begin`, it reports the longest recent step at intervals."""

    def __init__(self, launcher: socket.socket) -> None:
        self.launcher = launcher
        self.is_heard = True
        """Whether the launcher was running at the last report."""

    def begin(self, address: str, step_seconds: Callable[[], float]) -> None:
        """Report the address of the peer, then `step_seconds()` at intervals."""
        self._say(Say.READY, address=address)
        threading.Thread(target=self._work, args=(step_seconds,), daemon=True).start()

    def report(self, **what: Any) -> None:
        """Report fields of `PeerHandle`."""
        self._say(Say.ALIVE, **what)

    def fail(self, error: BaseException) -> None:
        """Report an error that ends the run, also to a launcher that is stopped."""
        self._say(Say.FAILED, 0, **plain_failure(error))

    def wait_for_begin(self, is_stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """Wait for the message to start, and return its content, or None once the launcher has ended or
        `is_stopped()`."""
        while self.is_heard and not is_stopped():
            if select.select([self.launcher], [], [], PERIOD_SECONDS)[0]:
                _, fds = receive(self.launcher)
                return dict(open_parcel(fds[0])) if fds else None
        return None

    def hear(self) -> Iterator[tuple[Say, dict[str, Any]]]:
        """Yield the launcher's messages since the last call."""
        with suppress(BlockingIOError):
            while frame := receive(self.launcher, socket.MSG_DONTWAIT)[0]:
                yield decode(frame)

    def _say(self, kind: Say, flags: int = socket.MSG_DONTWAIT, **body: Any) -> None:
        try:
            self.launcher.send(encode(kind, **body), flags)
        except BlockingIOError:
            pass  # the launcher is stopped, and reads nothing
        except OSError:
            self.is_heard = False

    def _work(self, step_seconds: Callable[[], float]) -> None:
        while True:
            time.sleep(PERIOD_SECONDS)
            self.report(step_seconds=step_seconds())


def end_process() -> NoReturn:
    """Kill this process and those that it has started, without any cleanup that could hang."""
    with suppress(OSError):
        kill_children()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")
