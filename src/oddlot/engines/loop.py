"""The main loop of a run: it waits for messages and passes them to the host."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Protocol

from oddlot.engines.base import Mailbox
from oddlot.engines.host import ReceivedUpdate


class Driven(Protocol):
    """A host, or several hosts that share a clock, such as the peers of a mesh."""

    @property
    def alarm(self) -> float:
        """Return the due time of `ring`; infinity for never."""

    def ring(self, now: float) -> None:
        """Handle due alarms and timeouts."""

    def receive(self, message: Any, now: float) -> None:
        """Handle a message of the mailbox."""


def drive(
    host: Driven,
    mailbox: Mailbox[Any],
    ended: Callable[[], str],
    due: Callable[[], float] = lambda: inf,
    holds: Callable[[], bool] = lambda: False,
) -> str:
    """Pass messages and alarms to the host until `ended()` returns a reason. Return the reason.

    `due()` returns the latest time of the next call of `ended()`. While `holds()` is true, no update and no alarm is
    passed on.
    """
    held = deque[Any]()
    while not (reason := ended()):
        if held and not holds():
            host.receive(held.popleft(), mailbox.now)
            continue
        is_held = holds()
        message = mailbox.next(due() if is_held else min(host.alarm, due()))
        if is_held and isinstance(message, ReceivedUpdate):
            held.append(message)
        elif message is not None:
            host.receive(message, mailbox.now)
        elif not is_held:
            host.ring(mailbox.now)
    return reason
