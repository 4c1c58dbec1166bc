"""Ctrl-C and SIGTERM as a wish that is heard between two events."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class StopWish:
    """The signal that has asked the run to stop; 0 while none has."""

    _listens: ClassVar["StopWish | None"] = None
    """the one that hears signals now"""

    def __init__(self) -> None:
        self._signal = 0
        self._around: StopWish | None = None

    def interrupt(self) -> None:
        """Ctrl-C has come while nothing heard it."""
        self._signal = self._signal or signal.SIGINT

    @property
    def signal(self) -> int:
        """Which it was, of those that were heard here or around this."""
        return self._signal or (self._around.signal if self._around else 0)

    @contextmanager
    def heard(self) -> Iterator["StopWish"]:
        """The first Ctrl-C asks the run to stop, and so does SIGTERM, as clouds and job queues send it before they take
        a machine back; a second Ctrl-C does what it always does. A second SIGTERM does nothing: `timeout` and others
        send two at once, to the process and to its group. Where Ctrl-C is ignored, as in a shell's background job, and
        where the program has its own answer to SIGTERM, it stays so. Inside another wish it is that one which hears.
        """
        if StopWish._listens and threading.current_thread() is threading.main_thread():
            self._around = StopWish._listens
            yield self
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        if before[signal.SIGINT] == signal.SIG_IGN:
            del before[signal.SIGINT]
        if before[signal.SIGTERM] != signal.SIG_DFL:
            del before[signal.SIGTERM]

        def ask(number: int, _: object) -> None:
            self._signal = self._signal or number
            if signal.SIGINT in before:
                signal.signal(signal.SIGINT, before[signal.SIGINT])

        try:
            for number in before:
                signal.signal(number, ask)
        except ValueError:  # not the main thread: signals are somebody else's
            yield self
            return
        StopWish._listens = self
        try:
            yield self
        finally:
            StopWish._listens = None
            for number, handler in before.items():
                signal.signal(number, handler)
