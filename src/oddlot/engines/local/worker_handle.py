"""A worker process as the hub sees it."""

import socket
from collections import deque
from dataclasses import dataclass, field

from oddlot.core.tasks import NodeId, TaskId
from oddlot.engines.local.respawn import EVALUATOR_INDEX, Death


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """A worker process, from its fork to its end."""

    node: NodeId
    index: int
    """Number of the worker. -1: the evaluator."""
    number: int
    """The number of its fork."""
    socket: socket.socket
    since: float
    """Time at which it was requested or, later, lost."""
    pid: int = 0
    """Process id. 0: not reported by the fork server yet."""
    ready: bool = False
    leaving: bool = False
    productive: bool = False
    """Whether it has returned an update."""
    reported: bool = False
    """Whether `Lost` was reported."""
    taken_away: bool = False
    """Whether it is ended for a reason other than its own failure."""
    killed: bool = False
    """Whether it is ended by fault injection."""
    invalid: bool = False
    """Whether it is ended because of an invalid message."""
    exit_code: int | None = None
    """Exit code. Negative: the signal that killed it. None: the hub ended it."""
    outbox: deque[bytes] = field(default_factory=deque)
    """Messages that wait until its socket is writable."""
    tasks: dict[TaskId, int] = field(default_factory=dict)
    """Update block of each of its tasks."""

    @property
    def is_evaluator(self) -> bool:
        """Whether it evaluates instead of computing tasks."""
        return self.index == EVALUATOR_INDEX

    @property
    def is_open(self) -> bool:
        """Whether its messages are still read."""
        return self.socket.fileno() != -1

    def death(self, busy: bool) -> Death:
        """Return how it ended, for the respawn policy. `busy`: it had tasks."""
        return Death(
            self.node,
            self.index,
            self.exit_code,
            had_tasks=bool(self.tasks),
            idle=self.ready and not busy,
            expected=self.leaving or self.taken_away,
            productive=self.productive,
            killed=self.killed,
            invalid=self.invalid,
        )
