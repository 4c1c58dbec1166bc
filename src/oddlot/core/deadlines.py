"""When the answer of every open task is due."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from oddlot.core.tasks import TaskId

MAX_STALE = 64
"""entries of tasks that are over, and twice as many as there are open ones"""


@dataclass
class Deadlines:
    """A heap of times, in which tasks that have been answered may still stand."""

    heap: list[tuple[float, TaskId, bool]] = field(default_factory=list)
    """when, of which task, and whether provisional: set when nobody had answered, so that nobody knew what a task
    takes"""

    @property
    def first(self) -> float:
        """The next one; infinity where there is none."""
        return self.heap[0][0] if self.heap else inf

    def set(self, when: float, task: TaskId, provisional: bool = False) -> None:
        """The answer is due then."""
        heappush(self.heap, (when, task, provisional))

    def due(self, now: float) -> Iterator[tuple[TaskId, bool]]:
        """Take out those that have passed, and tell which of them are provisional."""
        while self.heap and self.heap[0][0] <= now:
            yield heappop(self.heap)[1:]

    def take_provisional(self) -> list[TaskId]:
        """Take out those that are to be set anew."""
        taken = [task for _, task, provisional in self.heap if provisional]
        self._keep([entry for entry in self.heap if not entry[2]])
        return taken

    def forget(self, still_open: Collection[TaskId]) -> None:
        """Let go of tasks that are over: the first ones, or all where there are many."""
        if len(self.heap) > 2 * len(still_open) + MAX_STALE:
            self._keep([entry for entry in self.heap if entry[1] in still_open])
        while self.heap and self.heap[0][1] not in still_open:
            heappop(self.heap)

    def _keep(self, entries: list[tuple[float, TaskId, bool]]) -> None:
        self.heap = entries
        heapify(self.heap)
