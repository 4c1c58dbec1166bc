"""The hub's state of a worker on a Ray cluster, its open tasks, published weights, and results of calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from oddlot.core.tasks import TaskId
from oddlot.engines.processes.worker_state import WorkerState
from oddlot.engines.ray.cluster import put
from oddlot.engines.ray.object_chunks import pieces_of
from oddlot.engines.ray.worker_actor import Started
from oddlot.model.flat_buffer import FlatBuffer


class Published:
    """Weights in the object store. They are removed with the last reference to this object."""

    def __init__(self, weights: FlatBuffer) -> None:
        self.ref = put(pieces_of(weights.memory.numpy()))


class OpenTask(NamedTuple):
    """A task that was sent to a worker."""

    published: Published
    """The weights that the worker reads."""
    weights: FlatBuffer
    """The same weights at the hub."""
    sent: float = 0.0
    """Time when it was sent."""


@dataclass(slots=True, eq=False, kw_only=True)
class ActorHandle(WorkerState):
    """A worker, from the request for its actor to its end."""

    actor: Any
    heard: float | None = None
    """Time of its last sign of life. None if it has not started."""
    silence: float = 0.0
    """Seconds without a sign of life while the hub was listening."""
    avoids: bool = False
    """Whether it was requested for nodes other than some that seemed to be lost."""
    started: Started | None = None
    """Its process, node and machine. None if unknown yet."""
    judged_by: float = inf
    """Deadline for the output of its process after its end. Infinity: it has not ended."""
    noticed: bool = False
    """Whether it was given notice, because its node is drained or the buying policy gives it back."""
    calls: set[Any] = field(default_factory=set)
    """References to results that are pending."""
    tasks: dict[TaskId, OpenTask] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended, and the hub waits for its output."""
        return self.judged_by < inf

    def is_on(self, node: str) -> bool:
        """Return whether it is on the node with this id of Ray's."""
        return self.started is not None and self.started.ray_node == node


class CallResult(NamedTuple):
    """The result of a call of a worker, received by a thread of Ray."""

    worker: ActorHandle
    call: Any
    """Reference to the result."""
    then: Callable[[Any], None]
    """Handles the result."""
    answer: Any
    """The result, or an exception."""
