"""Timeouts of tasks, without a conductor: expired deadlines and hung workers."""

from dataclasses import dataclass, field
from math import inf

from oddlot.core.sample_spans import Span
from oddlot.core.support.serialization import from_plain, to_plain
from oddlot.core.task_timeouts import TaskTimeouts
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.core.worker_stats import WorkerStats


@dataclass
class Assigned:
    """Workers with a task of 10 samples each, all assigned at 0 s."""

    now: float = 0.0
    worker_stats: WorkerStats = field(default_factory=WorkerStats)
    idle: dict[NodeId, None] = field(default_factory=dict)
    busy: dict[NodeId, dict[TaskId, float]] = field(default_factory=dict)
    open: dict[TaskId, Task] = field(default_factory=dict)
    held: dict[TaskId, Task] = field(default_factory=dict)
    timeouts: TaskTimeouts = field(default_factory=TaskTimeouts)

    def start(self, node: NodeId, wished: float | None = None) -> Task:
        if node not in self.busy:
            self.worker_stats.join(node, self.now)
        task = Task(f"{node}:{len(self.held)}", node, (Span(0, 0, 10),), 0)
        self.open[task.id] = self.held[task.id] = task
        self.busy.setdefault(node, {})[task.id] = self.now
        self.timeouts.start(task, self.now, self.worker_stats, wished)
        return task

    def wait(self, node: NodeId) -> None:
        self.worker_stats.join(node, self.now)
        self.idle[node] = None
        self.busy[node] = {}

    def answer(self, task: Task, now: float) -> None:
        self.now = now
        del self.open[task.id], self.held[task.id], self.busy[task.node][task.id]
        self.timeouts.end(task.id)
        self.worker_stats.result(task.node, 10, now, now)

    def expired(self, now: float) -> list[TaskId]:
        self.now = now
        ended = [task.id for task in self.timeouts.expired(self)]
        for task in ended:
            del self.open[task]
        return ended

    def hung(self, now: float) -> list[TaskId]:
        self.now = now
        return [task.id for task in self.timeouts.hung(self)]


def test_strategy_deadline_expires_without_idle_workers() -> None:
    tasks = Assigned()
    tasks.start("a", wished=5.0)
    assert tasks.timeouts.first == 5.0
    assert tasks.expired(4.9) == []
    assert tasks.expired(5.0) == ["a:0"]
    assert tasks.timeouts.first == 50.0, "ten timeouts until its worker counts as hung"


def test_one_provisional_deadline_expires_per_idle_worker() -> None:
    tasks = Assigned()
    for node in "abc":
        tasks.start(node)
    assert tasks.expired(600.0) == []
    tasks.wait("d")
    assert tasks.expired(1_200.0) == ["a:0"]
    assert tasks.timeouts.first == 1_800.0


def test_first_update_replaces_provisional_deadlines() -> None:
    tasks = Assigned()
    first, _ = tasks.start("a"), tasks.start("b")
    tasks.start("c", wished=1_000.0)
    tasks.answer(first, now=100.0)
    tasks.timeouts.replace_provisional(tasks)
    assert tasks.expired(400.0) == ["b:1"], "four times as long as the first task, counted from its start"
    assert tasks.expired(999.0) == []
    assert tasks.expired(1_000.0) == ["c:2"]


def test_worker_is_hung_once_ten_timeouts_after_its_last_update() -> None:
    tasks = Assigned()
    tasks.start("a", wished=10.0)
    tasks.start("a", wished=10.0)
    other = tasks.start("a", wished=1_000.0)
    assert tasks.expired(10.0) == ["a:0", "a:1"]
    tasks.answer(other, now=60.0)
    assert tasks.hung(100.0) == []
    assert tasks.timeouts.first == 160.0
    assert tasks.hung(160.0) == ["a:0"]


def test_worker_is_hung_after_thirty_seconds_at_the_earliest() -> None:
    tasks = Assigned()
    tasks.start("a", wished=0.1)
    assert tasks.expired(0.1) == ["a:0"]
    assert (tasks.hung(29.9), tasks.hung(30.0)) == ([], ["a:0"])


def test_late_update_clears_the_hang_timer_of_its_worker() -> None:
    tasks = Assigned()
    task = tasks.start("a", wished=1.0)
    tasks.expired(1.0)
    tasks.open[task.id] = task  # `answer` closes it
    tasks.answer(task, now=2.0)
    tasks.timeouts.forget_ended(tasks)
    assert (tasks.timeouts.first, tasks.timeouts.silence) == (inf, {})


def test_timeouts_are_saved_and_restored() -> None:
    tasks = Assigned()
    tasks.start("a", wished=10.0)
    tasks.start("b")
    tasks.expired(10.0)
    assert from_plain(TaskTimeouts, to_plain(tasks.timeouts)) == tasks.timeouts
