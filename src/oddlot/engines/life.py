"""One life of a worker process, as the hub sees it."""

import socket
from dataclasses import dataclass, field
from typing import Any

from oddlot.core import words as w
from oddlot.engines.messages import Say


@dataclass(slots=True)
class Life:
    """From a fork to its end."""

    node: w.NodeId
    index: int
    number: int
    """of its fork"""
    socket: socket.socket
    pid: int = 0
    ready: bool = False
    leaving: bool = False
    fruitful: bool = False
    """it has brought something"""
    taken_away: bool = False
    """its end is no fault of its"""
    killed: bool = False
    """on purpose"""
    exit_code: int | None = None
    """once it has ended and the fork server has told; negative: the signal that ended it"""
    tasks: dict[w.TaskId, int] = field(default_factory=dict)
    """the update block of every task it holds"""

    def is_told(self, kind: Say, body: dict[str, Any]) -> bool:
        """Note what the fork server says, if it is about this life; true once it has ended."""
        if kind is Say.FORKED and self.number == body["number"]:
            self.pid = body["pid"]
        elif kind is Say.EXITED and self.pid == body["pid"]:
            self.exit_code = body["code"]
            return True
        return False
