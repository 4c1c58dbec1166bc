"""The base of engines that wrap another one: they change some messages and pass on the rest."""

from collections.abc import Collection
from typing import Any

from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.engines.base import Engine
from oddlot.engines.host import Message


class EngineWrapper:
    """Mailbox and port of `engine`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.engine.now

    @property
    def is_spent(self) -> bool:
        """Nothing will happen any more of itself."""
        return self.engine.is_spent

    def next(self, until: float) -> Message | None:
        """The next message."""
        return self.engine.next(until)

    def start(self, task: Task, weights: Any) -> None:
        """Give the task to its node."""
        self.engine.start(task, weights)

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Ask the node to stop."""
        self.engine.abort(task, node)

    def evict(self, node: NodeId) -> None:
        """Kill a worker that has hung."""
        self.engine.evict(node)

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """Ask the node to answer with what it has done."""
        self.engine.hand_over(task, node)

    def evaluate(self, version: int, weights: Any) -> None:
        """Measure these weights."""
        self.engine.evaluate(version, weights)

    def loaded(self) -> Collection[TaskId]:
        """The open tasks that read their version's memory no more."""
        return tuple(self.engine.loaded())
