"""Ctrl-C, SIGTERM and SIGHUP as a stop request that is handled between two events."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request a stop."""


class StopRequest:
    """The signal that requested a stop; 0 if none has."""

    _listens: ClassVar["StopRequest | None"] = None
    """The request that handles signals now."""

    def __init__(self) -> None:
        self._signal = 0
        self._around: StopRequest | None = None

    def interrupt(self) -> None:
        """Record a Ctrl-C that arrived outside `heard`."""
        self._signal = self._signal or signal.SIGINT

    @property
    def signal(self) -> int:
        """Return the signal, of this request or an enclosing one."""
        return self._signal or (self._around.signal if self._around else 0)

    @contextmanager
    def heard(self) -> Iterator["StopRequest"]:
        """Handle signals inside this context. The first Ctrl-C, SIGTERM or SIGHUP requests a stop; a second Ctrl-C
        raises KeyboardInterrupt.

        Clouds and job queues send SIGTERM before they reclaim a machine. A closed terminal sends SIGHUP. A second
        SIGTERM is ignored, because `timeout` and others send two at once, to the process and to its group. Signals
        that the program ignores or handles itself stay as they are. A context inside another one leaves signals to the
        outer one.
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
        except ValueError:  # not the main thread: it cannot handle signals
            yield self
            return
        StopRequest._listens = self
        try:
            yield self
        finally:
            StopRequest._listens = None
            for number, handler in before.items():
                signal.signal(number, handler)
