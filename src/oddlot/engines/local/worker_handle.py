"""A worker process as the hub sees it."""

import socket
from collections import deque
from dataclasses import dataclass, field

from oddlot.core.tasks import NodeId, TaskId
from oddlot.engines.local.respawn import EVALUATOR_INDEX, Death


@dataclass(slots=True, eq=False)
class WorkerHandle:
    """One worker process, from its fork to its end."""

    node: NodeId
    index: int
    """Its place among the workers; -1: the evaluator."""
    number: int
    """The number of its fork."""
    socket: socket.socket
    since: float
    """When it was requested or, later, lost."""
    pid: int = 0
    """0: the fork server has not told it yet."""
    ready: bool = False
    leaving: bool = False
    productive: bool = False
    """It has returned an update."""
    reported: bool = False
    """`Lost` was reported."""
    taken_away: bool = False
    """It is ended for no fault of its own."""
    killed: bool = False
    """It is ended by fault injection."""
    invalid: bool = False
    """It is ended because it sent an invalid message."""
    exit_code: int | None = None
    """Once it has ended by itself; negative: the signal that ended it. None: the hub has ended it."""
    outbox: deque[bytes] = field(default_factory=deque)
    """Messages that wait for room in its socket."""
    tasks: dict[TaskId, int] = field(default_factory=dict)
    """The update block of each of its tasks."""

    @property
    def is_evaluator(self) -> bool:
        """Whether it evaluates instead of computing tasks."""
        return self.index == EVALUATOR_INDEX

    @property
    def is_open(self) -> bool:
        """Whether it is still heard."""
        return self.socket.fileno() != -1

    def death(self, busy: bool) -> Death:
        """Return how it ended, for the respawn policy; `busy`: it had something to do."""
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
