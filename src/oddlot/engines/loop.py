"""The loop of a run: wait for a message, hand it to the host."""

from collections.abc import Callable
from math import inf

from oddlot.engines.base import Mailbox
from oddlot.engines.host import Host


def drive(
    host: Host, mailbox: Mailbox, ended: Callable[[], str], due: Callable[[], float] = lambda: inf
) -> str:
    """Hand messages and alarms to the host until `ended()` gives a reason; return the reason.

    `due()` is when to ask again at the latest, even if nothing happens.
    """
    while not (reason := ended()):
        message = mailbox.next(min(host.alarm, due()))
        if message is None:
            host.ring(mailbox.now)
        else:
            host.receive(message, mailbox.now)
    return reason
