"""A simulated worker with its queue of tasks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from oddlot.core.sample_spans import samples_in
from oddlot.core.support.event_queue import EventQueue
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.engines.host import Envelope
from oddlot.engines.simulated.task_execution import TaskExecution
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Machine


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """A worker on a simulated machine. It computes one task at a time, in order.

    Its link carries one transfer in each direction at a time. `answer` is called when the end of a task reaches its
    host.
    """

    node: NodeId
    host: NodeId
    """The host that receives its messages."""
    machine: Machine
    delay: Times
    link_delay: Times
    events: EventQueue[Envelope]
    batch: int
    bytes_up: Callable[[], int]
    """Returns the bytes of the next update, for its transfer time."""
    answer: Callable[["SimulatedWorker", TaskExecution], Envelope | None]
    joined_at: float
    free_at: float
    """End time of its last task."""
    last_contact: float
    """Time of its last transfer."""
    is_leaving: bool = False
    is_gone: bool = False
    """Whether it was lost and the hub has not detected it yet."""
    slowness: float = 0.0
    queue: list[TaskExecution] = field(default_factory=list)
    version: int = -1
    """Version of the weights that it has."""
    shards: set[int] = field(default_factory=set)
    """Indices of the data shards that it has."""
    frozen_at: float | None = None
    thawed_at: float = 0.0
    has_pending_notice: bool = False
    """Whether a notice arrived while it was frozen."""

    def add(self, task: Task, weights: Any, weight_bytes: int, data_bytes: int) -> None:
        """Queue a task, and schedule its transfers and computation."""
        now = self.events.now
        seconds = samples_in(task.spans) * self.machine.seconds_per_sample * self.delay()
        seconds *= 1.0 + self.slowness
        factor = self.link_delay()
        ready = now + factor * self.machine.link.seconds(weight_bytes + data_bytes)
        self.queue.append(TaskExecution(task, weights, ready, seconds, weight_bytes, data_bytes, factor))
        self._schedule(len(self.queue) - 1)

    def find(self, task: TaskId) -> int | None:
        """Return the position of a task in the queue, or None."""
        return next((place for place, one in enumerate(self.queue) if one.task.id == task), None)

    def request_stop(self, place: int) -> None:
        """Ask it to end a task. The request arrives after the link's latency."""
        execution, now = self.queue[place], self.events.now
        execution.stop_at = min(execution.stop_at, now + self.machine.link.seconds(0))
        if execution.end > now:
            self._schedule(place)

    def request_stops(self) -> None:
        """End all tasks at their next minibatch."""
        now = self.events.now
        for execution in self.queue:
            execution.stop_at = min(execution.stop_at, now)
        self._schedule(self._first_unfinished(now))

    def remove(self, place: int) -> TaskExecution:
        """End a task immediately in any state, and return it."""
        now, execution = self.events.now, self.queue.pop(place)
        execution.entry = 0
        if execution.ready > now:
            self.version = -1
        if not place:
            self.free_at = max(self.free_at, min(execution.end, now))
        for later in self.queue[place : place + 1]:
            later.ready = max(later.ready, min(execution.end, now))
        self._schedule(place)
        return execution

    def slow(self, factor: float) -> None:
        """Multiply the duration of each step by `1 + factor` from now on."""
        ratio, self.slowness = (1.0 + factor) / (1.0 + self.slowness), factor
        now = self.events.now if self.frozen_at is None else self.frozen_at
        first = self._first_unfinished(now)
        for execution in self.queue[first:]:
            execution.change_pace(now, ratio)
        self._schedule(first)

    def freeze(self) -> None:
        """Suspend the worker."""
        self.frozen_at = self.events.now
        self.stop()

    def thaw(self, frozen_at: float) -> None:
        """Resume a worker that was suspended at `frozen_at`."""
        now = self.thawed_at = self.events.now
        self.frozen_at = None
        first = next((place for place, one in enumerate(self.queue) if not one.entry), len(self.queue))
        for execution in self.queue[first : first + 1]:
            has_begun = execution.begin < frozen_at
            execution.ready = execution.begin + now - frozen_at if has_begun else max(execution.ready, now)
        self._schedule(first)

    def stop(self) -> None:
        """Stop computing. Updates in transit still arrive."""
        last = self.events.now if self.frozen_at is None else self.frozen_at
        for execution in self.queue:
            if execution.end > last:
                execution.entry = 0

    def _first_unfinished(self, now: float) -> int:
        return next((place for place, one in enumerate(self.queue) if one.end > now), len(self.queue))

    def _schedule(self, first: int) -> None:
        """Set the times of the queue from position `first` on, and schedule the ends of its tasks."""
        free = self.queue[first - 1].end if first else self.free_at
        continues = self.frozen_at is None and not self.is_gone
        for execution in self.queue[first:]:
            execution.begin = max(execution.ready, free)
            execution.set_end(max(execution.stop_at, self.thawed_at), self.batch)
            free = execution.end
            execution.entry = entry = self.events.entries + 1 if continues else 0
            if entry:
                size = self.bytes_up() if execution.has_update else 0
                arrival = execution.end + execution.link_factor * self.machine.link.seconds(size)
                self.events.at(arrival, partial(self._end, execution, entry))

    def _end(self, execution: TaskExecution, entry: int) -> Envelope | None:
        """Remove a task from the queue and return its message, unless the entry is outdated."""
        if execution.entry != entry:
            return None
        self.queue.remove(execution)
        self.free_at, self.last_contact = max(self.free_at, execution.end), self.events.now
        return self.answer(self, execution)
