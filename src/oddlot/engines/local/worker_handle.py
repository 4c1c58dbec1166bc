"""One life of a worker process, as the hub sees it."""

import socket
from collections import deque
from dataclasses import dataclass, field

from oddlot.core.tasks import NodeId, TaskId


@dataclass(slots=True)
class Life:
    """From a fork to its end."""

    node: NodeId
    index: int
    number: int
    """of its fork"""
    socket: socket.socket
    since: float
    """when it was asked for or, later, lost"""
    pid: int = 0
    ready: bool = False
    leaving: bool = False
    fruitful: bool = False
    """it has brought something"""
    told: bool = False
    """the hub knows that it is gone"""
    taken_away: bool = False
    """its end is no fault of its"""
    killed: bool = False
    """on purpose"""
    invalid: bool = False
    """it has sent an invalid message, for which the hub has ended it"""
    exit_code: int | None = None
    """once it has ended by itself; negative: the signal that ended it. None: the hub has ended it"""
    outbox: deque[bytes] = field(default_factory=deque)
    """messages for which its socket had no room"""
    tasks: dict[TaskId, int] = field(default_factory=dict)
    """the update block of every task it holds"""
