"""The main loop of a run: wait for a message, pass it to the host."""

from collections.abc import Callable
from math import inf

from oddlot.engines.base import Mailbox
from oddlot.engines.host import Host


def drive(
    host: Host, mailbox: Mailbox, ended: Callable[[], str], due: Callable[[], float] = lambda: inf
) -> str:
    """Pass messages and alarms to the host until `ended()` returns a reason. Return the reason.

    `due()` is the time at which `ended` is called again at the latest.
    """
    while not (reason := ended()):
        message = mailbox.next(min(host.alarm, due()))
        if message is None:
            host.ring(mailbox.now)
        else:
            host.receive(message, mailbox.now)
    return reason
