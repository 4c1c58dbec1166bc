"""Ctrl-C and SIGTERM as a wish that is heard between two events."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class StopWish:
    """The signal that has asked the run to stop; 0 while none has."""

    signal = 0

    @contextmanager
    def heard(self) -> Iterator[None]:
        """The first Ctrl-C asks the run to stop, and so does SIGTERM, as clouds and job queues send it before they take
        a machine back; a second Ctrl-C does what it always does. A second SIGTERM does nothing: `timeout` and others
        send two at once, to the process and to its group. Where Ctrl-C is ignored, as in a shell's background job, and
        where the program has its own answer to SIGTERM, it stays so.
        """
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        if before[signal.SIGINT] == signal.SIG_IGN:
            del before[signal.SIGINT]
        if before[signal.SIGTERM] != signal.SIG_DFL:
            del before[signal.SIGTERM]

        def ask(number: int, _: object) -> None:
            self.signal = self.signal or number
            if signal.SIGINT in before:
                signal.signal(signal.SIGINT, before[signal.SIGINT])

        try:
            for number in before:
                signal.signal(number, ask)
        except ValueError:  # not the main thread: signals are somebody else's
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
