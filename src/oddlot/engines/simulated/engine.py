"""The same run under a virtual clock: a heap of what will happen, and a clock that jumps.

A task is computed for real when its answer is due, from the weights of when it started: work that was lost or
cancelled is never computed, and one seed gives one trace.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, Protocol

from oddlot.core.event_queue import EventQueue
from oddlot.core.events import Cancelled, Evaluated, Gone, Leaving, Lost, Priced
from oddlot.core.spans import minibatch_cuts, samples_in, split
from oddlot.core.tasks import Facts, NodeId, Task, TaskId
from oddlot.engines.host import Arrival, Message
from oddlot.engines.simulated.compute import DataBytes
from oddlot.engines.simulated.machine_lifecycle import Lives
from oddlot.engines.simulated.stalled import stalled
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Machine
from oddlot.machines.market import Hub, Zone


class Computation(Protocol):
    """What computes the tasks of a simulated run; see `oddlot.engines.simulated.compute`."""

    bytes_down: int
    """of the weights that a task starts from"""
    bytes_up: int
    """of an update"""

    def compute(self, task: Task, weights: Any) -> tuple[float | None, Any]:
        """The mean loss and the payload."""

    def forget(self, node: NodeId) -> None:
        """The node is gone, and what it kept of its own."""

    def evaluate(self, weights: Any) -> dict[str, float]:
        """The metrics of these weights."""


@dataclass(slots=True)
class _Work:
    """A task on its way through a machine; times in seconds on the virtual clock."""

    task: Task
    weights: Any
    ready: float
    """when its weights have arrived"""
    compute: float
    size: int
    """bytes of weights that had to be sent"""
    data: int
    """bytes of samples that had to be sent"""
    way: float
    """by which its transfers are slower than on average"""
    begin: float = 0.0
    first: float = 0.0
    """samples that were done then, at another pace"""
    spent: float = 0.0
    """seconds on these"""
    end: float = 0.0
    plan: int = 0
    """the number of the queue's entry that counts; an older one is void"""
    unwanted: bool = False
    """its answer will be an echo, so it is not computed"""
    told: float = inf
    """when word reaches the machine that it is to stop"""
    least: int = 0
    """samples that are computed even so"""
    done: int = 0
    """samples that are computed until then"""
    aborted: bool = False
    """that are not all"""

    def brought(self, now: float) -> tuple[int, int]:
        """Bytes of weights and samples that have arrived."""
        return (self.size, self.data) if self.ready <= now else (0, 0)

    @property
    def brings(self) -> bool:
        """An answer comes, if only one of a part: of a task that is still wanted."""
        return self.done > 0 and not (self.aborted and self.unwanted)


@dataclass(slots=True)
class _Node:
    """One life of a machine."""

    name: NodeId
    machine: Machine
    delay: Times
    ways: Times
    born: float
    leaving: bool = False
    slowness: float = 0.0
    queue: list[_Work] = field(default_factory=list)
    free_at: float = 0.0
    has_version: int = -1
    has_shards: set[int] = field(default_factory=set)
    frozen_at: float | None = None
    notice_waits: bool = False
    """it is heard once the machine goes on"""
    thawed_at: float = 0.0
    heard: float = 0.0
    """when it was last given or brought anything"""
    gone: bool = False
    """which the hub does not know yet"""


class Simulator:
    """Mailbox and port of a fleet that exists only as arithmetic.

    A machine computes one task at a time, in order; its link carries one transfer each way beside that.
    """

    def __init__(
        self,
        machines: Sequence[Machine | Zone],
        computation: Computation,
        batch: int,
        seed: int = 0,
        now: float = 0.0,
        taken: Collection[str] = (),
        hub: Hub = Hub(),  # noqa: B008 - frozen, and without state
        data: DataBytes = DataBytes(),  # noqa: B008 - likewise
    ) -> None:
        self.computation, self.batch, self.data = computation, batch, data
        self.events: EventQueue[Message] = EventQueue(now)
        self.nodes: dict[NodeId, _Node] = {}
        if hub.dollars_per_hour:
            self.events.at(now, lambda: Priced("", hub.dollars_per_hour))
        self.quiet_since = now
        """nothing but prices has changed since then"""
        self.lives = Lives(self.events, machines, self, seed, taken)

    # --- the mailbox ---------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds of virtual time since the run began."""
        return self.events.now

    def next(self, until: float) -> Message | None:
        """The next thing that happens before `until`; the clock jumps there."""
        message = self.events.next(until)
        if message is None and until == inf:
            raise stalled(self.quiet_since, len(self.nodes), self.lives.ended_traces)
        if message is None:
            self.events.now = max(self.now, until)  # an alarm that a resumed run had missed is in the past
        elif not isinstance(message, Priced):
            self.quiet_since = self.now
        return message

    @property
    def is_spent(self) -> bool:
        """Nothing will happen any more of itself."""
        return not self.events.heap

    # --- the port ------------------------------------------------------------------------------

    def start(self, task: Task, weights: Any) -> None:
        """Send the weights unless the machine has them, and queue the task. Of one that is gone nothing comes."""
        node = self.nodes.get(task.node)
        if node is None:
            return
        size = 0 if node.has_version == task.version else self.computation.bytes_down
        node.has_version, node.heard = task.version, self.now
        seconds = samples_in(task.spans) * node.machine.seconds_per_sample * node.delay()
        seconds *= 1.0 + node.slowness
        data = self.data.missing(task, node.has_shards)
        way = node.ways()
        ready = self.now + way * node.machine.link.seconds(size + data)
        work = _Work(task, weights, ready, seconds, size, data, way)
        node.queue.append(work)
        self._plan(node, len(node.queue) - 1)

    def abort(self, task: TaskId, node: NodeId) -> None:
        """The machine stops at the next minibatch after word has reached it, unless that is its last; or at once."""
        life, index = self._find(task, node)
        if life is None:
            return  # its answer is on the way
        life.queue[index].unwanted = True
        if life.machine.stops_at_once and life.frozen_at is None and not life.gone:
            self._cut_off(life, index)
            return
        self._tell(life, index)

    def evict(self, node: NodeId) -> None:
        """Its process is killed and another one begins on the machine."""
        self.lives.restart(node)
        self.kill(node)

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """The machine answers with what it has done, after the minibatch in which word reaches it."""
        life, index = self._find(task, node)
        if life is not None:
            life.queue[index].least = 1
            self._tell(life, index)

    def _find(self, task: TaskId, node: NodeId) -> tuple[_Node | None, int]:
        """The machine that has the task, and its place there; None where it is done with it."""
        life = self.nodes.get(node)
        for index, work in enumerate(life.queue if life else ()):
            if work.task.id == task:
                return life, index
        return None, -1

    def _tell(self, node: _Node, index: int) -> None:
        """Word is on its way that a task is to end."""
        work = node.queue[index]
        work.told = min(work.told, self.now + node.machine.link.seconds(0))
        if work.end > self.now:
            self._plan(node, index)

    def _cut_off(self, node: _Node, index: int) -> None:
        """End a task now, wherever it is."""
        work = node.queue.pop(index)
        work.plan = 0
        if work.ready > self.now:
            node.has_version = -1
        if not index:
            node.free_at = max(node.free_at, min(work.end, self.now))
        for later in node.queue[index : index + 1]:
            later.ready = max(later.ready, min(work.end, self.now))
        self._plan(node, index)
        ended = Cancelled(work.task.id, node.name, *work.brought(self.now))
        self.events.at(self.now, lambda: ended)
        self._dismiss(node)

    def evaluate(self, version: int, weights: Any) -> None:
        """Free in virtual time."""
        self.events.at(self.now, lambda: Evaluated(version, self.computation.evaluate(weights)))

    def loaded(self) -> tuple[TaskId, ...]:
        """None: a task is computed at its virtual end, on the hub's own memory."""
        return ()

    # --- faults --------------------------------------------------------------------------------

    def kill(self, node: NodeId) -> None:
        """The machine is gone now; one that returns after its lifetimes returns after this too."""
        self.events.at(self.now, lambda: self.lose(node))

    def leave(self, node: NodeId) -> None:
        """The machine stops at the next minibatch, hands over what it has done, and goes."""
        self.events.at(self.now, lambda: self.notice(node))

    def slow(self, node: NodeId, factor: float) -> None:
        """From now on its steps take so much longer, those of the task under way too."""
        life = self.nodes.get(node)
        if life is None:
            return
        ratio, life.slowness = (1.0 + factor) / (1.0 + life.slowness), factor
        now = self.now if life.frozen_at is None else life.frozen_at
        first = next((i for i, work in enumerate(life.queue) if work.end > now), len(life.queue))
        for work in life.queue[first:]:
            if work.begin < now:
                work.spent += now - work.begin
                work.first = self._done(work, now)
                work.compute -= now - work.begin
                work.begin = work.ready = now
            work.compute *= ratio
        self._plan(life, first)

    @staticmethod
    def _done(work: _Work, now: float) -> float:
        """How many samples of a task are done then."""
        samples = samples_in(work.task.spans)
        return work.first + max(0.0, now - work.begin) / work.compute * (samples - work.first)

    def freeze(self, node: NodeId) -> None:
        """The machine stops: what it has not finished will not be, for now."""
        life = self.nodes.get(node)
        if life is not None and life.frozen_at is None:
            life.frozen_at = self.now
            self._stop(life)

    def thaw(self, node: NodeId) -> None:
        """The machine goes on where it was."""
        life = self.nodes.get(node)
        if life is None or life.frozen_at is None:
            return
        frozen_at, life.frozen_at, life.thawed_at = life.frozen_at, None, self.now
        first = next((i for i, work in enumerate(life.queue) if not work.plan), len(life.queue))
        for work in life.queue[first : first + 1]:
            began = work.begin < frozen_at
            work.ready = work.begin + self.now - frozen_at if began else max(work.ready, self.now)
        self._plan(life, first)
        if life.notice_waits:
            self.leave(node)

    def bar(self, machine: str, barred: bool) -> None:
        """From now on no other one is ordered once it is gone, and one that is starting is given up; or again."""
        if not barred:
            self.events.at(self.now, lambda: self.lives.unbar(machine))
        elif (message := self.lives.bar(machine)) is not None:
            self.events.at(self.now, lambda: message)

    # --- what happens --------------------------------------------------------------------------

    def begin(self, name: NodeId, machine: Machine, delay: Times, ways: Times) -> None:
        """The machine is ready for tasks."""
        self.nodes[name] = _Node(name, machine, delay, ways, self.now, free_at=self.now, heard=self.now)

    def notice(self, name: NodeId) -> Message | None:
        """The machine stops at the next minibatch, hands over what it has done, and goes."""
        node = self.nodes.get(name)
        if node is None or node.leaving or node.gone:
            return None
        if node.frozen_at is not None:
            node.notice_waits = True
            return None
        node.leaving = True
        for work in node.queue:
            work.told = min(work.told, self.now)
        self._plan(
            node, next((i for i, work in enumerate(node.queue) if work.end > self.now), len(node.queue))
        )
        self._dismiss(node)
        return Leaving(name)

    def _dismiss(self, node: _Node) -> None:
        """A machine that leaves goes once it has handed over all."""
        if node.leaving and not node.queue:
            self.events.at(self.now, lambda: self.lose(node.name))

    def lose(self, name: NodeId) -> Message | None:
        """The machine is gone; the hub knows at once, or when it has not heard of it for so long."""
        node = self.nodes.get(name)
        if node is None or node.gone:
            return None
        if node.queue:  # otherwise it had nothing to bring
            self.lives.count_fruitless(name, self.now - node.born, node.queue[0].compute)
        self._stop(node)
        node.gone = True
        self.lives.died(name)
        known = max(self.now, node.heard + node.machine.noticed_after_seconds)
        if not node.leaving and known > self.now:
            self.events.at(known, lambda: self._know(node))
            return Gone(name)
        return self._know(node)

    def _know(self, node: _Node) -> Message:
        """The hub hears of the loss; answers that are still on their way come too late."""
        for work in node.queue:
            work.unwanted = True
        del self.nodes[node.name]
        self.computation.forget(node.name)
        self.lives.noticed(node.name)
        return Lost(node.name)

    def _plan(self, node: _Node, first: int) -> None:
        """Time the queue from this place on: a machine computes one task after the other."""
        free = node.queue[first - 1].end if first else node.free_at
        for work in node.queue[first:]:
            work.begin = max(work.ready, free)
            self._end(work, max(work.told, node.thawed_at))
            free = work.end
            goes_on = node.frozen_at is None and not node.gone
            work.plan = number = self.events.entries + 1 if goes_on else 0
            if number:
                size = self.computation.bytes_up if work.brings else 0
                answer = partial(self._answer, node, work, number)
                self.events.at(work.end + work.way * node.machine.link.seconds(size), answer)

    def _end(self, work: _Work, told: float) -> None:
        """When the machine stops working at this: at the first minibatch before which it has been told to stop."""
        samples = samples_in(work.task.spans)
        work.end, work.done, work.aborted = work.begin + work.compute, samples, False
        if told < work.end:
            cuts = minibatch_cuts(samples, self.batch)
            began = max(self._done(work, told), work.least)
            work.done = next((cut for cut in cuts if cut >= began), samples)
            work.aborted = work.done < samples
            work.end = work.begin + work.compute * (work.done - work.first) / (samples - work.first)

    def _stop(self, node: _Node) -> None:
        """Nothing goes on there; what was finished is on its way, and arrives."""
        last = self.now if node.frozen_at is None else node.frozen_at
        for work in node.queue:
            if work.end > last:
                work.plan = 0

    def _answer(self, node: _Node, work: _Work, number: int) -> Message | None:
        if work.plan != number:
            return None
        node.queue.remove(work)
        node.free_at, node.heard = max(node.free_at, work.end), self.now
        self._dismiss(node)
        task = work.task
        if not work.brings:
            return Cancelled(task.id, task.node, *work.brought(self.now))
        self.lives.work_came_in()
        part = replace(task, spans=split(task.spans, work.done)[0]) if work.aborted else task
        moves_on = task.pull is not None and node.name in self.nodes  # its own weights, wanted or not
        skipped = work.unwanted and not moves_on
        loss, payload = (None, None) if skipped else self.computation.compute(part, work.weights)
        down = work.way * node.machine.link.seconds(work.size + work.data)
        seconds = {
            "down": down,
            "load": 0.0,
            "compute": work.spent + work.end - work.begin,
            "up": self.now - work.end,
        }
        facts = Facts(
            id=task.id,
            sender=task.node,
            based_on=task.version,
            samples=work.done,
            kind=task.kind,
            loss=loss,
            seconds=seconds,
            bytes_down=work.size,
            bytes_up=self.computation.bytes_up,
            bytes_data=work.data,
        )
        return Arrival(facts, payload)
