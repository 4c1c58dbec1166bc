"""The tasks and states of workers over time, computed from a log."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from oddlot.core import events
from oddlot.core.commands import Abort, Action, Blend, Drop, Evict, Skip, Start, Step
from oddlot.core.records import ECHO, Record
from oddlot.core.sample_spans import samples_in
from oddlot.core.tasks import Facts, NodeId, Task, TaskId, UpdateId, node_of
from oddlot.history.sample_counts import SampleCounts, Traffic, rejection


class StateInterval(NamedTuple):
    """A worker's state from `start` to `stop`, in seconds of the run's clock."""

    state: str
    start: float
    stop: float


@dataclass(slots=True)
class TaskRun:
    """A task: its worker, its times and its outcome."""

    id: TaskId
    node: NodeId
    version: int
    """Version of the model that it starts from."""
    samples: int
    """Assigned samples. After the update has arrived: computed samples."""
    given: float
    begun: float
    """Start time of its computation. Known once the task has ended."""
    ended: float = inf
    """Time when its worker finished it or was lost. Equal to `begun` if the task was still queued."""
    outcome: str = ""
    """`merged`, `skipped`, or a key of `WASTES`; empty until it is known."""

    @property
    def unused(self) -> bool:
        """Whether its computation was wasted. Work that was lost with the hub is not counted."""
        return self.outcome not in {"", "merged", "resumed", "unfinished"}


class Merge(NamedTuple):
    """A merge: its time and its tasks."""

    now: float
    tasks: list[TaskRun]


@dataclass(slots=True)
class WorkerStates:
    """The current state of a worker and, if the timeline keeps the history, its earlier states."""

    node: NodeId
    state: str
    """`starting`, `working`, `waiting`, `leaving`, `left` or `lost`, as the hub knows it."""
    since: float
    came: float
    """Time of its order or, without an order, of its join."""
    samples: int = 0
    """Number of its samples that were merged."""
    traffic: Traffic = field(default_factory=Traffic)
    """Bytes of its messages, if the history is kept."""
    begun: float = 0.0
    """Start time of its oldest task."""
    heard: float = 0.0
    """Time of its last finished task."""
    tasks: dict[TaskId, TaskRun] = field(default_factory=dict)
    """Open tasks, from the oldest to the newest."""
    ended: float | None = None
    """End time of its machine or the hub. The hub may detect the machine's end later."""
    ended_as: str = ""
    """`lost` or `left`; empty if the hub ended."""
    intervals: list[StateInterval] | None = None
    """Past states, or None if the history is not kept."""
    answered: list[TaskRun] = field(default_factory=list)
    """Finished tasks, if the history is kept."""

    @property
    def gone(self) -> bool:
        """Whether the worker has ended."""
        return self.state in {"left", "lost"}

    def turn(self, state: str, now: float) -> None:
        """Enter a state. It may be the current state."""
        if self.intervals is not None and now > self.since:
            self.intervals.append(StateInterval(self.state, self.since, now))
        self.state, self.since = state, now

    def give(self, task: TaskRun, now: float) -> None:
        """Append a task to its queue."""
        if not self.tasks:
            self.begun = now
        self.tasks[task.id] = task
        if not self.gone:
            self.turn("working", now)

    def answer(self, name: TaskId, now: float) -> None:
        """Record the end of a task."""
        self.heard = now
        oldest = next(iter(self.tasks), None) == name
        if task := self.tasks.pop(name, None):
            task.begun, task.ended = self.begun if oldest else now, now
            if oldest:
                self.begun = now
            if self.intervals is not None:
                self.answered.append(task)
        if not self.tasks and self.state == "working":
            self.turn("waiting", now)

    def end(self, state: str, now: float) -> None:
        """Record that its machine ended or, if `state` is empty, that the hub ended."""
        if self.ended is None:
            self.ended, self.ended_as = now, state

    def history(self, until: float) -> Iterator[StateInterval]:
        """Yield its actual states. The hub may have detected them later.

        The state of computation that was not merged is `wasted`.
        """
        ended = until if self.ended is None else self.ended
        past = [*(self.intervals or ()), StateInterval(self.state, self.since, until)]
        computed = (task for task in self.answered if task.unused and task.begun < task.ended)
        wasted = deque(StateInterval("wasted", task.begun, task.ended) for task in computed)
        if self.ended_as and self.tasks:  # the hub has not detected the end yet
            wasted.append(StateInterval("wasted", self.begun, ended))
        for state, start, stop in past:
            known = StateInterval(state, start, min(stop, ended))
            yield from _overlaid(known, wasted) if state == "working" else [known]
        if self.ended_as:
            yield StateInterval(self.ended_as, ended, until)


@dataclass
class WorkerTimeline:
    """Workers and tasks of a run, updated by each record."""

    samples: SampleCounts = field(default_factory=SampleCounts)
    """Samples of its tasks."""
    keep: bool = False
    """Whether to keep the history (`WorkerStates.history`). False: only open tasks are kept."""
    workers: dict[NodeId, WorkerStates] = field(default_factory=dict)
    """All workers that joined."""
    starting: dict[NodeId, WorkerStates] = field(default_factory=dict)
    """Ordered machines that have not joined yet."""
    never_joined: list[WorkerStates] = field(default_factory=list)
    """Machines that ended while they started, if the history is kept."""
    under_way: dict[TaskId, TaskRun] = field(default_factory=dict)
    """Tasks that have neither ended nor been given up."""
    inbox: dict[UpdateId, TaskRun] = field(default_factory=dict)
    """Tasks whose updates are neither merged nor dropped."""
    merged: dict[UpdateId, int] = field(default_factory=dict)
    """Samples of the updates of the latest record with merges."""
    merges: list[Merge] = field(default_factory=list)
    """Merges with their tasks, if the history is kept."""
    workers_lost: int = 0
    workers_left: int = 0
    """Workers that left after a notice."""
    starts_lost: int = 0
    """Machines that were preempted before they joined."""

    @property
    def lives(self) -> list[WorkerStates]:
        """Return all workers and starting machines, from the oldest to the newest."""
        return sorted(
            [*self.never_joined, *self.workers.values(), *self.starting.values()], key=lambda one: one.came
        )

    @property
    def summary(self) -> dict[str, int]:
        """Return the counts under the names of a run's summary."""
        return {
            "workers_lost": self.workers_lost,
            "workers_left": self.workers_left,
            "starts_lost": self.starts_lost,
        }

    def __call__(self, record: Record) -> None:
        """Process a record."""
        self.hear(record)
        for action in record.actions:
            self.act(action, record.now)

    def hear(self, record: Record) -> None:
        """Process an event."""
        now = record.now
        if any(isinstance(action, Step | Blend) for action in record.actions):
            self.merged.clear()
        match event := record.event:
            case events.Arrived():
                self._arrived(event.update, record.remark == ECHO, now)
            case events.Cancelled():
                self._cancelled(event, now)
            case events.UpdateRejected(task):
                skipped = any(isinstance(action, Skip) for action in record.actions)
                self._waste(task, "skipped" if skipped else rejection(event))
                if worker := self.workers.get(node_of(task)):
                    worker.answer(task, now)
            case events.Joined() | events.Ordered() | events.Leaving() | events.Gone() | events.Lost():
                self._machine(event, now)
            case events.Resumed(samples_lost=lost, segment=segment):
                self.samples.assigned += lost
                self.samples.wasted["resumed"] += lost
                self._resumed(now)
                if segment is not None:
                    for discarded in self.inbox.values():
                        self._settle(discarded, "resumed")
                    self.inbox.clear()

    def act(self, action: Action, now: float) -> None:
        """Process an action."""
        match action:
            case Start():
                self._start(action.task, now)
            case Step(shares) | Blend(shares):
                tasks = [self._merge(update) for update in shares]
                if self.keep:
                    self.merges.append(Merge(now, tasks))
            case Drop(update):
                if dropped := self.inbox.pop(update, None):
                    self._settle(dropped, "dropped")
            case Abort(name):
                self._waste(name, "cancelled")
            case Skip(spans):
                self.samples.skip(samples_in(spans))
            case Evict(node):
                for task in self.workers[node].tasks:
                    self._waste(task, "lost")

    def finish(self) -> None:
        """Count open tasks as wasted: the run has ended."""
        for waiting in (self.under_way, self.inbox):
            for task in waiting.values():
                self._settle(task, "unfinished")
            waiting.clear()

    def _start(self, task: Task, now: float) -> None:
        samples = samples_in(task.spans)
        self.samples.assigned += samples
        self.under_way[task.id] = run = TaskRun(task.id, task.node, task.version, samples, now, now)
        self.workers[task.node].give(run, now)

    def _cancelled(self, event: events.Cancelled, now: float) -> None:
        if worker := self.workers.get(event.node):
            if self.keep:
                worker.traffic.add(0, event.bytes_down, event.bytes_data, wasted=True)
            worker.answer(event.task, now)
        self._waste(event.task, "cancelled")

    def _arrived(self, facts: Facts, echo: bool, now: float) -> None:
        if worker := self.workers.get(facts.sender):
            if self.keep:
                worker.traffic.add(facts.bytes_up, facts.bytes_down, facts.bytes_data, echo)
            worker.answer(facts.id, now)
        if echo:
            self._waste(facts.id, "late")
            return
        task = self.under_way.pop(facts.id, None)
        if task is None:  # the audit reports it
            task = TaskRun(facts.id, facts.sender, facts.based_on, facts.samples, now, now)
        self.inbox[facts.id] = task
        self.samples.returned += task.samples - facts.samples
        task.samples = facts.samples

    def _machine(
        self, event: events.Joined | events.Ordered | events.Leaving | events.Gone | events.Lost, now: float
    ) -> None:
        node = event.node
        worker = self.workers.get(node)
        match event:
            case events.Ordered():
                self.starting[node] = self._come("starting", node, now)
            case events.Joined():
                starting = self.starting.pop(node, None)
                self.workers[node] = worker = starting or worker or self._come("waiting", node, now)
                worker.ended, worker.ended_as = None, ""  # a peer of a resumed run keeps its name
                worker.turn("waiting", now)
            case events.Leaving() if worker and not worker.gone:
                worker.turn("leaving", now)
            case events.Gone() | events.Lost() if worker is None:
                self.starts_lost += 1
                if starting := self.starting.pop(node, None):
                    self._never_joined(starting, "lost", now)
            case events.Gone() if worker and not worker.gone:
                worker.end("left" if worker.state == "leaving" else "lost", now)
            case events.Lost() if worker and not worker.gone:
                had_notice = worker.state == "leaving"
                self.workers_left += had_notice
                self.workers_lost += not had_notice
                self._end(worker, "left" if had_notice else "lost", "lost", now)

    def _come(self, state: str, node: NodeId, now: float) -> WorkerStates:
        return WorkerStates(node, state, now, now, intervals=[] if self.keep else None)

    def _never_joined(self, worker: WorkerStates, state: str, now: float) -> None:
        worker.end(state, now)
        if self.keep:
            self.never_joined.append(worker)

    def _resumed(self, now: float) -> None:
        """End all workers: the hub ended, and the run was resumed."""
        for worker in self.workers.values():
            if not worker.gone:
                worker.end("", now)
                self._end(worker, "lost", "resumed", now)
        for worker in self.starting.values():
            self._never_joined(worker, "", now)
        self.starting.clear()

    def _end(self, worker: WorkerStates, state: str, reason: str, now: float) -> None:
        """Record that the hub detected the end of a worker. Its tasks end too."""
        worker.end(state, now)
        worker.turn(state, now)
        for task in list(worker.tasks):
            self._waste(task, reason)
            worker.answer(task, now)

    def _merge(self, update: UpdateId) -> TaskRun:
        task = self.inbox.pop(update)
        task.outcome = "merged"
        self.merged[update] = task.samples
        self.samples.merged += task.samples
        if worker := self.workers.get(task.node):
            worker.samples += task.samples
        return task

    def _waste(self, name: TaskId, reason: str) -> None:
        if task := self.under_way.pop(name, None):
            self._settle(task, reason)

    def _settle(self, task: TaskRun, outcome: str) -> None:
        task.outcome = outcome
        self.samples.wasted[outcome] += task.samples


def _overlaid(known: StateInterval, marks: deque[StateInterval]) -> Iterator[StateInterval]:
    """Yield the parts of an interval, with the states of `marks` where they overlap it.

    Marks that end within the interval are removed.
    """
    state, start, stop = known
    while marks and marks[0].start < stop:
        mark = marks[0]
        begin, end = max(start, mark.start), min(stop, mark.stop)
        if begin < end:
            yield StateInterval(state, start, begin)
            yield StateInterval(mark.state, begin, end)
            start = end
        if mark.stop > stop:
            break
        marks.popleft()
    yield StateInterval(state, start, stop)
