"""Deadlines of open tasks."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from oddlot.core.tasks import TaskId

MAX_STALE = 64
"""Size of the heap, above twice the number of open tasks, from which entries of finished tasks are removed."""


@dataclass
class Deadlines:
    """A heap of deadlines, which may contain entries of finished tasks."""

    heap: list[tuple[float, TaskId, bool]] = field(default_factory=list)
    """Time, task, and whether the deadline is provisional: set before any task was finished."""

    @property
    def first(self) -> float:
        """Return the earliest deadline; infinity if there is none."""
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
