"""Where the next event comes from: the one place where an engine waits."""

from collections.abc import Callable
from math import inf
from typing import Protocol

from oddlot.core.tasks import NodeId
from oddlot.engines.host import Host, Message


def life_name(name: str, life: int) -> NodeId:
    """What a worker is called in its first life (`w1`), its second (`w1.2`), ..."""
    return name if life == 1 else f"{name}.{life}"


class Mailbox(Protocol):
    """A clock and a queue. In the simulator the clock jumps; elsewhere it runs."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    def next(self, until: float) -> Message | None:
        """The next message; None when there is none before the time `until`."""


class Faults(Protocol):
    """Misfortune on purpose, the same on every engine."""

    @property
    def is_spent(self) -> bool:
        """Nothing will happen any more of itself: nobody works, and nobody will come."""

    def kill(self, node: NodeId) -> None:
        """End the worker at once, as kill -9 does; `Lost` follows."""

    def leave(self, node: NodeId) -> None:
        """Tell the worker that its machine is wanted back, as SIGTERM does: it hands over what it has done and goes;
        `Leaving` and `Lost` follow."""

    def slow(self, node: NodeId, factor: float) -> None:
        """Have the worker wait after each step `factor` times as long as the step took; 0 ends it."""

    def freeze(self, node: NodeId) -> None:
        """Stop the worker where it is, as SIGSTOP does; nothing tells of it."""

    def thaw(self, node: NodeId) -> None:
        """Let a frozen worker go on."""

    def bar(self, machine: str, barred: bool) -> None:
        """Whether a machine whose life ends stays away: nobody replaces it until it is barred no more."""


def drive(
    host: Host, mailbox: Mailbox, ended: Callable[[], str], due: Callable[[], float] = lambda: inf
) -> str:
    """Hand messages and alarms to the host until `ended()` gives a reason; returns the reason.

    `due()` is when to ask again at the latest, even if nothing happens.
    """
    while not (reason := ended()):
        message = mailbox.next(min(host.alarm, due()))
        if message is None:
            host.ring(mailbox.now)
        else:
            host.receive(message, mailbox.now)
    return reason
