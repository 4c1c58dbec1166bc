"""A forked process as the hub or the launcher sees it."""

import socket
from collections import deque
from dataclasses import dataclass, field

from oddlot.core.tasks import TaskId
from oddlot.engines.worker_state import WorkerState


@dataclass(slots=True, eq=False, kw_only=True)
class ProcessHandle(WorkerState):
    """A process, from its fork to its end."""

    number: int
    """The number of its fork."""
    socket: socket.socket
    outbox: deque[bytes] = field(default_factory=deque)
    """Messages that wait until its socket is writable."""
    is_orphan: bool = False
    """Whether it continues after its fork server has ended."""

    @property
    def is_open(self) -> bool:
        """Whether its messages are still read."""
        return self.socket.fileno() != -1


@dataclass(slots=True, eq=False, kw_only=True)
class WorkerHandle(ProcessHandle):
    """A worker process."""

    tasks: dict[TaskId, int] = field(default_factory=dict)
    """Update block of each of its tasks."""
