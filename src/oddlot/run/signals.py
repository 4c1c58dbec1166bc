"""Stop requests by Ctrl-C, SIGTERM and SIGHUP, handled between two events."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request a stop."""


class StopRequest:
    """Catches the signals that request a stop."""

    _listens: ClassVar["StopRequest | None"] = None
    """The request with active signal handlers."""

    def __init__(self) -> None:
        self._signal = 0
        self._around: StopRequest | None = None

    def interrupt(self) -> None:
        """Record a Ctrl-C that arrived outside `heard`."""
        self._signal = self._signal or signal.SIGINT

    @property
    def signal(self) -> int:
        """Return the number of the signal that this request or an enclosing one received. 0: none."""
        return self._signal or (self._around.signal if self._around else 0)

    @contextmanager
    def heard(self) -> Iterator["StopRequest"]:
        """Handle signals inside this context.

        The first Ctrl-C, SIGTERM or SIGHUP requests a stop. A second Ctrl-C raises KeyboardInterrupt.

        Clouds and job queues send SIGTERM before they reclaim a machine. A closed terminal sends SIGHUP. A second
        SIGTERM is ignored, because `timeout` and other programs send it to the process and to its group at the same
        time. Signals that the program already ignores or handles keep their handlers. In nested contexts, the outermost
        one handles signals.
        """
        if StopRequest._listens and threading.current_thread() is threading.main_thread():
            self._around = StopRequest._listens
            yield self
            return
        before = {number: signal.getsignal(number) for number in STOPS}
        if before[signal.SIGINT] == signal.SIG_IGN:
            del before[signal.SIGINT]
        for number in (signal.SIGTERM, signal.SIGHUP):
            if before[number] != signal.SIG_DFL:  # nohup ignores SIGHUP
                del before[number]

        def ask(number: int, _: object) -> None:
            self._signal = self._signal or number
            if signal.SIGINT in before:
                signal.signal(signal.SIGINT, before[signal.SIGINT])

        try:
            for number in before:
                signal.signal(number, ask)
        except ValueError:  # only the main thread can handle signals
            yield self
            return
        StopRequest._listens = self
        try:
            yield self
        finally:
            StopRequest._listens = None
            for number, handler in before.items():
                signal.signal(number, handler)
