"""The main loop of a run: it waits for messages and passes them to the host."""

from collections.abc import Callable
from math import inf
from typing import Any, Protocol

from oddlot.engines.base import Mailbox


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
    host: Driven, mailbox: Mailbox[Any], ended: Callable[[], str], due: Callable[[], float] = lambda: inf
) -> str:
    """Pass messages and alarms to the host until `ended()` returns a reason. Return the reason.

    `due()` returns the latest time of the next call of `ended()`.
    """
    while not (reason := ended()):
        message = mailbox.next(min(host.alarm, due()))
        if message is None:
            host.ring(mailbox.now)
        else:
            host.receive(message, mailbox.now)
    return reason
