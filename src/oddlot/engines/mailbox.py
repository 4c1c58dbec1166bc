"""Where the next event comes from: the one place where an engine waits."""

from collections.abc import Callable
from typing import Protocol

from oddlot.core import words as w
from oddlot.engines.host import Arrival, Host

Message = w.Stimulus | Arrival


def life_name(name: str, life: int) -> w.NodeId:
    """What a worker is called in its first life (`w1`), its second (`w1.2`), ..."""
    return name if life == 1 else f"{name}.{life}"


class Mailbox(Protocol):
    """A clock and a queue. In the simulator the clock jumps; elsewhere it runs."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    def next(self, until: float) -> Message | None:
        """The next message; None when there is none before the time `until`."""


def drive(host: Host, mailbox: Mailbox, ended: Callable[[], str]) -> str:
    """Hand messages and alarms to the host until `ended()` gives a reason; returns the reason."""
    while not (reason := ended()):
        message = mailbox.next(host.alarm)
        if message is None:
            host.ring(mailbox.now)
        elif isinstance(message, Arrival):
            host.arrive(message, mailbox.now)
        else:
            host.handle(message, mailbox.now)
    return reason
