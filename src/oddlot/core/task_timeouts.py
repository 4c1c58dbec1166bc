"""Timeouts of tasks: when their samples are given to other workers, and when a worker counts as hung."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from oddlot.core.deadlines import Deadlines
from oddlot.core.spans import samples_in
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.core.worker_stats import SECONDS_UNTIL_ANY_ANSWER, Roster

HUNG_TIMEOUTS, HUNG_SECONDS = 10.0, 30.0
"""A worker counts as hung after this many timeouts of its task, and at least this many seconds, without a response."""


def hung_after(timeout: float) -> float:
    """Return the seconds without a response after which the worker of a task with this timeout counts as hung."""
    return max(HUNG_SECONDS, HUNG_TIMEOUTS * timeout)


class Assignments(Protocol):
    """The conductor's state that `TaskTimeouts` reads."""

    now: float
    roster: Roster
    idle: dict[NodeId, None]
    busy: dict[NodeId, dict[TaskId, float]]
    open: dict[TaskId, Task]
    held: dict[TaskId, Task]


@dataclass
class TaskTimeouts:
    """Deadlines of open tasks, and the times at which the workers of late tasks count as hung.

    A deadline is provisional if it was not set by the strategy and no worker has finished a task, so the duration of
    tasks is unknown. The first finished task replaces all provisional deadlines.
    """

    deadlines: Deadlines = field(default_factory=Deadlines)
    evictions: Deadlines = field(default_factory=Deadlines)
    """When the workers of tasks that missed a deadline count as hung."""
    silence: dict[TaskId, float] = field(default_factory=dict)
    """Seconds without a response after which the worker of such a task counts as hung."""

    @property
    def first(self) -> float:
        """Return the earliest of these times; infinity if there is none."""
        return min(self.deadlines.first, self.evictions.first)

    def start(self, task: Task, now: float, roster: Roster, requested: float | None = None) -> None:
        """Set the deadline of a new task: `requested` seconds from now, or estimated from its worker's speed."""
        timeout = roster.timeout(task.node, samples_in(task.spans), requested)
        self.deadlines.set(now + timeout, task.id, requested is None and roster.usual is None)

    def replace_provisional(self, books: Assignments) -> None:
        """Replace provisional deadlines when the first finished task shows how long tasks take."""
        for name in self.deadlines.take_provisional():
            task = books.open.get(name)
            if task and (since := books.busy[task.node].get(name)) is not None:  # not finished now
                timeout = books.roster.timeout(task.node, samples_in(task.spans))
                self.deadlines.set(since + timeout, name)

    def end(self, task: TaskId) -> None:
        """Remove a task that its worker has finished or acknowledged, or that was lost with its worker."""
        self.silence.pop(task, None)

    def expired(self, books: Assignments) -> Iterator[Task]:
        """Yield the open tasks that have timed out. Their samples must be given to other workers now.

        Of tasks with a provisional deadline, there are at most as many as workers without any task.
        """
        waiting = None
        for name, provisional in self.deadlines.due(books.now):
            if (task := books.open.get(name)) is None:
                continue
            since = books.busy[task.node][name]
            if provisional:
                waiting = _waiting(books) if waiting is None else waiting - 1
                if waiting < 1:
                    self.deadlines.set(books.now + SECONDS_UNTIL_ANY_ANSWER, name, provisional)
                    self._await_answer(name, since, SECONDS_UNTIL_ANY_ANSWER)
                    continue
            self._await_answer(name, since, books.now - since)
            yield task

    def hung(self, books: Assignments) -> Iterator[Task]:
        """Yield a late task of each hung worker."""
        nodes = set[NodeId]()
        for name, _ in self.evictions.due(books.now):
            if (task := books.held.get(name)) is None or task.node in nodes:
                continue
            heard = books.roster.members[task.node].last_heard or 0.0
            hung_at = max(heard, books.busy[task.node][name]) + self.silence[name]
            if hung_at > books.now:
                self.evictions.set(hung_at, name)
                continue
            nodes.add(task.node)
            yield task

    def forget_ended(self, books: Assignments) -> None:
        """Remove entries of tasks that have ended."""
        self.deadlines.forget(books.open)
        self.evictions.forget(books.held)

    def _await_answer(self, task: TaskId, since: float, timeout: float) -> None:
        self.silence[task] = hung_after(timeout)
        self.evictions.set(since + self.silence[task], task)


def _waiting(books: Assignments) -> int:
    return sum(not books.busy[node] for node in books.idle)
