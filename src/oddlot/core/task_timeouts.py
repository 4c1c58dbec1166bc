"""Timeouts of tasks, and detection of hung workers. Samples of timed-out tasks are assigned to other workers."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Protocol

from oddlot.core.sample_spans import samples_in
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.core.worker_stats import FIRST_UPDATE_TIMEOUT_SECONDS, WorkerStats

MAX_STALE = 64
"""Heap entries above twice the number of open tasks before entries of finished tasks are removed."""


@dataclass
class Deadlines:
    """A heap of deadlines. It may contain entries of finished tasks."""

    heap: list[tuple[float, TaskId, bool]] = field(default_factory=list)
    """Time, task, and whether the deadline is provisional: set before any task was finished."""

    @property
    def first(self) -> float:
        """Return the earliest deadline, or infinity if the heap is empty."""
        return self.heap[0][0] if self.heap else inf

    def set(self, when: float, task: TaskId, provisional: bool = False) -> None:
        """Set the deadline of a task."""
        heappush(self.heap, (when, task, provisional))

    def due(self, now: float) -> Iterator[tuple[TaskId, bool]]:
        """Remove deadlines that have passed. Yield the task of each, and whether the deadline was provisional."""
        while self.heap and self.heap[0][0] <= now:
            yield heappop(self.heap)[1:]

    def take_provisional(self) -> list[TaskId]:
        """Remove all provisional deadlines and return their tasks."""
        taken = [task for _, task, provisional in self.heap if provisional]
        self._keep([entry for entry in self.heap if not entry[2]])
        return taken

    def forget(self, still_open: Collection[TaskId]) -> None:
        """Remove entries of finished tasks from the top of the heap, or all of them if there are many."""
        if len(self.heap) > 2 * len(still_open) + MAX_STALE:
            self._keep([entry for entry in self.heap if entry[1] in still_open])
        while self.heap and self.heap[0][1] not in still_open:
            heappop(self.heap)

    def _keep(self, entries: list[tuple[float, TaskId, bool]]) -> None:
        self.heap = entries
        heapify(self.heap)


HUNG_TIMEOUTS, HUNG_SECONDS = 10.0, 30.0
"""A worker counts as hung after this many timeouts of its task, and at least this many seconds, without a response."""


def hung_after(timeout: float) -> float:
    """Return the seconds without a response until the worker of a task with this timeout counts as hung."""
    return max(HUNG_SECONDS, HUNG_TIMEOUTS * timeout)


class Assignments(Protocol):
    """The conductor's state that `TaskTimeouts` reads."""

    now: float
    worker_stats: WorkerStats
    idle: dict[NodeId, None]
    busy: dict[NodeId, dict[TaskId, float]]
    open: dict[TaskId, Task]
    held: dict[TaskId, Task]


@dataclass
class TaskTimeouts:
    """Deadlines of open tasks, and times when the workers of late tasks count as hung.

    A deadline is provisional if the strategy did not set it and no worker has finished a task, so task times are
    unknown. The first finished task replaces all provisional deadlines.
    """

    deadlines: Deadlines = field(default_factory=Deadlines)
    evictions: Deadlines = field(default_factory=Deadlines)
    """Times when the workers of late tasks count as hung."""
    silence: dict[TaskId, float] = field(default_factory=dict)
    """Seconds without a response until the worker of a late task counts as hung, by task."""

    @property
    def first(self) -> float:
        """Return the earliest of these times, or infinity."""
        return min(self.deadlines.first, self.evictions.first)

    def start(
        self, task: Task, now: float, worker_stats: WorkerStats, requested: float | None = None
    ) -> None:
        """Set the deadline of a new task: `requested` seconds from now, or estimated from its worker's speed."""
        timeout = worker_stats.timeout(task.node, samples_in(task.spans), requested)
        self.deadlines.set(now + timeout, task.id, requested is None and worker_stats.usual is None)

    def replace_provisional(self, assignments: Assignments) -> None:
        """Replace provisional deadlines. Call this when the first task is finished and task times are known."""
        for name in self.deadlines.take_provisional():
            task = assignments.open.get(name)
            if task and (since := assignments.busy[task.node].get(name)) is not None:  # still open
                timeout = assignments.worker_stats.timeout(task.node, samples_in(task.spans))
                self.deadlines.set(since + timeout, name)

    def end(self, task: TaskId) -> None:
        """Remove a task that its worker has finished or acknowledged, or that was lost with its worker."""
        self.silence.pop(task, None)

    def expired(self, assignments: Assignments) -> Iterator[Task]:
        """Yield the open tasks that have timed out, to assign their samples to other workers.

        The number of tasks with a provisional deadline is at most the number of idle workers.
        """
        waiting = None
        for name, provisional in self.deadlines.due(assignments.now):
            if (task := assignments.open.get(name)) is None:
                continue
            since = assignments.busy[task.node][name]
            if provisional:
                waiting = _waiting(assignments) if waiting is None else waiting - 1
                if waiting < 1:
                    self.deadlines.set(assignments.now + FIRST_UPDATE_TIMEOUT_SECONDS, name, provisional)
                    self._await_answer(name, since, FIRST_UPDATE_TIMEOUT_SECONDS)
                    continue
            self._await_answer(name, since, assignments.now - since)
            yield task

    def hung(self, assignments: Assignments) -> Iterator[Task]:
        """Yield a late task of each hung worker."""
        nodes = set[NodeId]()
        for name, _ in self.evictions.due(assignments.now):
            if (task := assignments.held.get(name)) is None or task.node in nodes:
                continue
            heard = assignments.worker_stats.members[task.node].last_heard or 0.0
            hung_at = max(heard, assignments.busy[task.node][name]) + self.silence[name]
            if hung_at > assignments.now:
                self.evictions.set(hung_at, name)
                continue
            nodes.add(task.node)
            yield task

    def forget_ended(self, assignments: Assignments) -> None:
        """Remove entries of tasks that have ended."""
        self.deadlines.forget(assignments.open)
        self.evictions.forget(assignments.held)

    def _await_answer(self, task: TaskId, since: float, timeout: float) -> None:
        self.silence[task] = hung_after(timeout)
        self.evictions.set(since + self.silence[task], task)


def _waiting(assignments: Assignments) -> int:
    return sum(not assignments.busy[node] for node in assignments.idle)
