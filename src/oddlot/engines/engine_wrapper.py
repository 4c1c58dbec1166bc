"""Base class of engines that wrap another one and change some of its messages."""

from collections.abc import Collection
from typing import Any

from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.engines.base import Engine
from oddlot.engines.host import Message


class EngineWrapper:
    """Passes all messages and requests on to `engine`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.engine.now

    @property
    def is_spent(self) -> bool:
        """Whether no message will ever come."""
        return self.engine.is_spent

    def next(self, until: float) -> Message | None:
        """Return the next message."""
        return self.engine.next(until)

    def start(self, task: Task, weights: Any) -> None:
        """Send a task to its worker."""
        self.engine.start(task, weights)

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Ask a worker to stop a task."""
        self.engine.abort(task, node)

    def evict(self, node: NodeId) -> None:
        """Kill a worker that hangs."""
        self.engine.evict(node)

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """Ask a worker to end a task early."""
        self.engine.hand_over(task, node)

    def evaluate(self, version: int, weights: Any) -> None:
        """Evaluate weights."""
        self.engine.evaluate(version, weights)

    def loaded(self) -> Collection[TaskId]:
        """Return tasks that no longer read the memory of their version."""
        return tuple(self.engine.loaded())
