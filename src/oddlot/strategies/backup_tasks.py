"""Backup tasks: who is idle begins the slowest tasks of the others again."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated

from oddlot.core.commands import Assign, Blend, Cancel, Command, Release, Step, Wake
from oddlot.core.events import Event, Leaving, Lost
from oddlot.core.spans import samples_in
from oddlot.core.strategy import STATE, Traits, View
from oddlot.core.strategy_wrapper import Wrapper
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.core.validation import Must
from oddlot.core.worker_stats import CLEARLY


@dataclass
class BackupTasks(Wrapper):
    """As the strategy inside, but whoever it leaves idle begins a late task again: the first of both that answers
    counts, and the other one is aborted.

    Late is a task that takes `slow` times what one of its size usually takes. Where rounds wait for everybody's whole
    task it is one of a worker that is known to be so slow that whoever is idle would clearly be sooner, or that
    takes `slow` times what its worker takes, or what is usual, whichever is more. So a round waits for a straggler for
    hardly longer than that and one more task, as long as fewer are late than are idle. What it costs is the work that
    is aborted, and that a worker hears of it at its next minibatch, so that it may come late to the next round: two to
    four workers that are alike and whose times scatter moderately may lose by it. Tasks that go on from a worker's own
    weights are its own; and a worker's first one is left to its lease, or nobody would learn how slow it is.

    Papers: Dean and Ghemawat, "MapReduce: Simplified Data Processing on Large Clusters" (OSDI 2004), section 3.6;
    Zaharia, Konwinski, Joseph, Katz, Stoica, "Improving MapReduce Performance in Heterogeneous Environments" (OSDI
    2008), section 4: by when a task is expected to end.
    """

    slow: Annotated[float, Must("at least 1 and finite", lambda slow: 1 <= slow < inf)] = 1.5
    """a task that takes so many times what is usual is late"""
    alarm: float = field(default=0.0, metadata=STATE)
    """state: when the next one is late, in seconds on the run's clock"""
    quickest: float = field(default=0.0, metadata=STATE)
    """state: seconds a sample of the quickest one for whom it is then; infinity where something is late already for
    anybody but its own worker"""

    def traits(self, batch_size: int) -> Traits:
        """An idle worker begins a late task again: it has to be seen as idle."""
        return replace(super().traits(batch_size), waits_for_all=False)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """What the strategy inside says, and what is late for those who are idle."""
        commands = list(self.inner.on(event, view))
        yield from commands
        if isinstance(event, Leaving | Lost):
            self.alarm = view.now  # what it had begun again is late for others
        busy = {command.node for command in commands if isinstance(command, Assign)}
        idle = [node for node in view.idle if node not in busy]
        if any(isinstance(command, self._looks_anew) for command in commands):
            self.alarm = view.now  # versions are others then, or tasks
            if idle:
                yield Wake(view.now)
        elif idle and view.tasks and (view.now >= self.alarm or self._is_quicker(idle[-1], view)):
            cancelled = {command.task for command in commands if isinstance(command, Cancel)}
            yield from self._begin_again(view, idle, cancelled)

    def _is_quicker(self, node: NodeId, view: View) -> bool:
        """Some tasks are late for a worker that just has become idle, if it is quicker than those for whom they were
        not."""
        return expected_pace(node, view) < self.quickest

    def _begin_again(self, view: View, idle: list[NodeId], cancelled: set[TaskId]) -> Iterator[Command]:
        """What is late now, the oldest first; and an alarm for what is late next."""
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
            and view.roster.members[task.node].results
        ]
        for late_at, task_id in sorted(tasks):
            if late_at > view.now:
                yield from self._wake(late_at, view)
                return
            task = view.tasks[task_id]
            if not idle:
                return  # whoever is idle next asks again at once
            node = next((node for node in idle if node != task.node), None)
            if node is None:  # nobody begins its own task again, but anybody else may
                self.quickest = inf
                continue
            idle.remove(node)
            version = task.version if view.can_start_from(task.version) else None
            yield Assign(node, samples_in(task.spans), task.kind, version, again=task_id)
            if self._is_around_a_wrapper:
                yield Wake(view.now)  # so that one which times tasks sees this one

    @property
    def _is_around_a_wrapper(self) -> bool:
        return isinstance(self.inner, Wrapper)

    @property
    def _waits(self) -> bool:
        """Rounds wait for every task until it is done, and not until a deadline."""
        inner = self.inner.traits(1)
        return inner.waits_for_all and not inner.hands_over

    @property
    def _looks_anew(self) -> tuple[type, ...]:
        """After which commands something may be late that was not, sooner than the alarm: a task of a slow worker."""
        return (Step, Blend, Release, Assign) if self._waits else (Step, Blend, Release)

    def _late_at(self, task: Task, quickest: float, view: View) -> float:
        """Since when, or from when on; infinity as long as nobody has answered. `quickest`: of those who are idle."""
        samples, since, usual = samples_in(task.spans), view.since(task.id), view.roster.usual
        if usual is None:
            return inf
        if not self._waits:
            return since + self.slow * usual * samples
        own = view.roster.members[task.node].median
        if since + own * samples > view.now + CLEARLY * quickest * samples:
            return since
        return since + self.slow * max(own, usual) * samples

    def _wake(self, at: float, view: View) -> Iterator[Command]:
        if at < inf and not view.now < self.alarm <= at:
            self.alarm = at
            yield Wake(at)


def expected_pace(node: NodeId, view: View) -> float:
    """What is expected of it, in seconds a sample."""
    return view.roster.members[node].median or view.roster.usual or inf
