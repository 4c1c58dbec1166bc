"""Backup tasks: idle workers repeat the slowest tasks of the others."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, ClassVar

from oddlot.core.commands import Assign, Blend, Cancel, Command, Release, Step, Wake
from oddlot.core.events import Event, Leaving, Lost
from oddlot.core.sample_spans import samples_in
from oddlot.core.strategy import STATE, Traits, View
from oddlot.core.strategy_wrapper import StrategyWrapper
from oddlot.core.support.validation import Must
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.core.worker_stats import CLEARLY


@dataclass
class BackupTasks(StrategyWrapper):
    """Let idle workers repeat late tasks of the inner strategy. The first update counts; the other task is cancelled.

    A task is late when it has taken `slow` times the usual time for its size. If rounds wait for every task, a task is
    late when it has taken `slow` times the longer of its worker's time and the usual time, or as soon as the worker is
    known to be so slow that an idle worker would clearly finish first.

    A round then waits for a straggler little longer than that time plus one task, while there are idle workers for all
    late tasks. The cost is the cancelled work. A worker stops at its next minibatch, which may delay its next task:
    with two to four similar workers and moderately varying times, a run may become slower.

    Two kinds of tasks are never repeated: those that start from a worker's own weights, and a worker's first task,
    which measures its speed.

    Papers: Dean and Ghemawat, "MapReduce: Simplified Data Processing on Large Clusters" (OSDI 2004), section 3.6;
    Zaharia, Konwinski, Joseph, Katz, Stoica, "Improving MapReduce Performance in Heterogeneous Environments" (OSDI
    2008), section 4: by when a task is expected to end.
    """

    keeps_exact: ClassVar[bool] = True

    slow: Annotated[float, Must("at least 1 and finite", lambda slow: 1 <= slow < inf)] = 1.5
    """Factor of the usual time of a task after which the task is late, at least 1."""
    alarm: float = field(default=0.0, metadata=STATE)
    """State: time when the next task becomes late, in seconds since the start of the run."""
    quickest: float = field(default=0.0, metadata=STATE)
    """State: seconds per sample of the fastest idle worker, the basis of that time. Infinity: a task is already late
    for every worker except its own."""

    def traits(self, batch_size: int) -> Traits:
        """Return the inner strategy's traits. Idle workers must be visible, so rounds do not wait for all."""
        return replace(super().traits(batch_size), waits_for_all=False)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Return the inner strategy's commands, and assign late tasks to idle workers."""
        commands = list(self.inner.on(event, view))
        yield from commands
        if isinstance(event, Leaving | Lost):
            self.alarm = view.now  # the tasks that it repeated are late for others
        busy = {command.node for command in commands if isinstance(command, Assign)}
        idle = [node for node in view.idle if node not in busy]
        if any(isinstance(command, self._looks_anew) for command in commands):
            self.alarm = view.now  # versions or tasks have changed
            if idle:
                yield Wake(view.now)
        elif idle and view.tasks and (view.now >= self.alarm or self._is_quicker(idle[-1], view)):
            cancelled = {command.task for command in commands if isinstance(command, Cancel)}
            yield from self._begin_again(view, idle, cancelled)

    def _is_quicker(self, node: NodeId, view: View) -> bool:
        """Return whether the worker is faster than the fastest worker in the last search for late tasks."""
        return expected_pace(node, view) < self.quickest

    def _begin_again(self, view: View, idle: list[NodeId], cancelled: set[TaskId]) -> Iterator[Command]:
        """Assign late tasks again, the oldest first, and set an alarm for the next task that becomes late."""
        copies = Counter(task.spans for task in view.tasks.values())
        idle.sort(key=lambda node: expected_pace(node, view))
        self.quickest = expected_pace(idle[0], view)
        tasks = [
            (self._late_at(task, self.quickest, view), task.id)
            for task in view.tasks.values()
            if task.id not in cancelled
            and task.pull is None
            and copies[task.spans] == 1
            and view.is_needed(task.id)
            and view.worker_stats.members[task.node].results
        ]
        for late_at, task_id in sorted(tasks):
            if late_at > view.now:
                yield from self._wake(late_at, view)
                return
            task = view.tasks[task_id]
            if not idle:
                return  # the next idle worker asks again immediately
            node = next((node for node in idle if node != task.node), None)
            if node is None:  # a worker never repeats its own task
                self.quickest = inf
                continue
            idle.remove(node)
            version = task.version if view.can_start_from(task.version) else None
            yield Assign(node, samples_in(task.spans), task.kind, version, copy_of=task_id)
            if self._is_around_a_wrapper:
                yield Wake(view.now)  # an inner wrapper that times tasks must see this task

    @property
    def _is_around_a_wrapper(self) -> bool:
        return isinstance(self.inner, StrategyWrapper)

    @property
    def _waits(self) -> bool:
        """Return whether rounds wait for every task to finish, without a deadline."""
        inner = self.inner.traits(1)
        return inner.waits_for_all and not inner.hands_over

    @property
    def _looks_anew(self) -> tuple[type, ...]:
        """Return the commands that may make a task of a slow worker late before the alarm."""
        return (Step, Blend, Release, Assign) if self._waits else (Step, Blend, Release)

    def _late_at(self, task: Task, quickest: float, view: View) -> float:
        """Return when the task becomes late; infinity until a first update gives the usual time.

        `quickest` is the pace of the fastest idle worker, in seconds per sample.
        """
        samples, since, usual = samples_in(task.spans), view.since(task.id), view.worker_stats.usual
        if usual is None:
            return inf
        if not self._waits:
            return since + self.slow * usual * samples
        own = view.worker_stats.members[task.node].median
        if since + own * samples > view.now + CLEARLY * quickest * samples:
            return since
        return since + self.slow * max(own, usual) * samples

    def _wake(self, at: float, view: View) -> Iterator[Command]:
        if at < inf and not view.now < self.alarm <= at:
            self.alarm = at
            yield Wake(at)


def expected_pace(node: NodeId, view: View) -> float:
    """Return the expected pace of a worker, in seconds per sample."""
    return view.worker_stats.members[node].median or view.worker_stats.usual or inf
