"""The same run under a virtual clock: a heap of what will happen, and a clock that jumps.

A task is computed for real when its answer is due, from the weights of when it started: work that was lost or
cancelled is never computed, and one seed gives one trace.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

from oddlot.core import words as w
from oddlot.core.errors import JobError
from oddlot.core.streams import stream
from oddlot.engines.host import Arrival, Message
from oddlot.engines.mailbox import life_name
from oddlot.machines.machine import Machine

FRUITLESS_LIVES = 1_000
"""in a row, and ten more for each machine: then the run is given up"""


class Maths(Protocol):
    """What the simulator has computed; see `oddlot.engines.numbers`."""

    bytes_down: int
    """of the weights that a task starts from"""
    bytes_up: int
    """of an update"""

    def compute(self, task: w.Task, weights: Any) -> tuple[float | None, Any]:
        """The mean loss and the payload."""

    def forget(self, node: w.NodeId) -> None:
        """The node is gone, and what it kept of its own."""

    def evaluate(self, weights: Any) -> dict[str, float]:
        """The metrics of these weights."""


@dataclass(slots=True)
class _Work:
    """A task on its way through a machine; times in seconds on the virtual clock."""

    task: w.Task
    weights: Any
    ready: float
    """when its weights have arrived"""
    compute: float
    size: int
    """bytes of weights that had to be sent"""
    begin: float = 0.0
    first: float = 0.0
    """samples that were done then, at another pace"""
    spent: float = 0.0
    """seconds on these"""
    end: float = 0.0
    plan: int = 0
    """the number of the agenda's entry that counts; an older one is void"""
    unwanted: bool = False
    """its answer will be an echo, so it is not computed"""
    told: float = inf
    """when word reaches the machine that it is to stop"""
    done: int = 0
    """samples that are computed until then"""
    aborted: bool = False
    """that are not all"""

    @property
    def brings(self) -> bool:
        """An answer comes, if only one of a part: of a task that is still wanted."""
        return self.done > 0 and not (self.aborted and self.unwanted)


@dataclass(slots=True)
class _Node:
    """One life of a machine."""

    name: w.NodeId
    machine: Machine
    delay: Callable[[], float]
    born: float
    leaving: bool = False
    slowness: float = 0.0
    queue: list[_Work] = field(default_factory=list)
    free_at: float = 0.0
    has_version: int = -1
    frozen_at: float | None = None
    notice_waits: bool = False
    """it is heard once the machine goes on"""
    thawed_at: float = 0.0
    reborn: Callable[[], None] = lambda: None
    """has the machine come back in its next life, if it ever does"""


class Simulator:
    """Mailbox and port of a fleet that exists only as arithmetic.

    A machine computes one task at a time, in order; its link carries one transfer each way beside that.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        maths: Maths,
        batch: int,
        seed: int = 0,
        now: float = 0.0,
        taken: Collection[str] = (),
    ) -> None:
        self.maths, self.batch, self.now, self.taken = maths, batch, now, taken
        self.fruitless, self.most_fruitless = 0, FRUITLESS_LIVES + 10 * len(machines)
        self.agenda: list[tuple[float, int, Callable[[], Message | None]]] = []
        self.entries = 0
        self.nodes: dict[w.NodeId, _Node] = {}
        for machine in machines:
            # One stream a machine: one machine more or less leaves the others' luck as it was.
            chance = stream(seed, f"machine {machine.name}")
            delay = machine.delay.start(chance)
            lives = machine.lifetime.start(chance) if machine.lifetime else None
            self._at(max(now, machine.joins_at_seconds), partial(self._join, machine, delay, lives, 1))

    # --- the mailbox ---------------------------------------------------------------------------

    def next(self, until: float) -> Message | None:
        """The next thing that happens before `until`; the clock jumps there."""
        while self.agenda and self.agenda[0][0] <= until:
            self.now, _, happen = heappop(self.agenda)
            message = happen()
            if message is not None:
                return message
        if until == inf:
            raise JobError(
                f"nothing can happen any more at {self.now:.1f} s of virtual time: {len(self.nodes)} machines are left "
                "and none will come; give machines a seconds_to_return, or more of them"
            )
        self.now = max(self.now, until)  # an alarm that a resumed run had missed is in the past
        return None

    @property
    def is_spent(self) -> bool:
        """Nothing will happen any more of itself."""
        return not self.agenda

    # --- the port ------------------------------------------------------------------------------

    def start(self, task: w.Task, weights: Any) -> None:
        """Send the weights unless the machine has them, and queue the task."""
        node = self.nodes[task.node]
        size = 0 if node.has_version == task.version else self.maths.bytes_down
        node.has_version = task.version
        seconds = w.samples_in(task.spans) * node.machine.seconds_per_sample * node.delay()
        seconds *= 1.0 + node.slowness
        work = _Work(task, weights, self.now + node.machine.link.seconds(size), seconds, size)
        node.queue.append(work)
        self._plan(node, len(node.queue) - 1)

    def abort(self, task: w.TaskId, node: w.NodeId) -> None:
        """The machine stops at the next minibatch after word has reached it, unless that is its last."""
        life = self.nodes[node]
        index = next((i for i, work in enumerate(life.queue) if work.task.id == task), None)
        if index is None:
            return  # its answer is on the way
        work = life.queue[index]
        work.unwanted = True
        work.told = min(work.told, self.now + life.machine.link.seconds(0))
        if work.end > self.now:
            self._plan(life, index)

    def evaluate(self, version: int, weights: Any) -> None:
        """Free in virtual time."""
        self._at(self.now, lambda: w.Evaluated(version, self.maths.evaluate(weights)))

    def loaded(self) -> tuple[w.TaskId, ...]:
        """None: a task is computed at its virtual end, on the hub's own memory."""
        return ()

    # --- faults --------------------------------------------------------------------------------

    def kill(self, node: w.NodeId) -> None:
        """The machine is gone now; one that returns after its lifetimes returns after this too."""
        self._at(self.now, lambda: self._lose(node))

    def leave(self, node: w.NodeId) -> None:
        """The machine stops at the next minibatch, hands over what it has done, and goes."""
        self._at(self.now, lambda: self._notice(node))

    def slow(self, node: w.NodeId, factor: float) -> None:
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
        samples = w.samples_in(work.task.spans)
        return work.first + max(0.0, now - work.begin) / work.compute * (samples - work.first)

    def freeze(self, node: w.NodeId) -> None:
        """The machine stops: what it has not finished will not be, for now."""
        life = self.nodes[node]
        if life.frozen_at is None:
            life.frozen_at = self.now
            self._stop(life)

    def thaw(self, node: w.NodeId) -> None:
        """The machine goes on where it was."""
        life = self.nodes[node]
        frozen_at, life.frozen_at, life.thawed_at = life.frozen_at, None, self.now
        if frozen_at is None:
            return
        first = next((i for i, work in enumerate(life.queue) if not work.plan), len(life.queue))
        for work in life.queue[first : first + 1]:
            began = work.begin < frozen_at
            work.ready = work.begin + self.now - frozen_at if began else max(work.ready, self.now)
        self._plan(life, first)
        if life.notice_waits:
            self.leave(node)

    # --- what happens --------------------------------------------------------------------------

    def _join(
        self, machine: Machine, delay: Callable[[], float], lives: Callable[[], float] | None, life: int
    ) -> Message:
        while (name := life_name(machine.name, life)) in self.taken:
            life += 1

        def reborn() -> None:
            if machine.seconds_to_return is not None:
                again = partial(self._join, machine, delay, lives, life + 1)
                self._at(self.now + machine.seconds_to_return, again)

        self.nodes[name] = _Node(name, machine, delay, self.now, free_at=self.now, reborn=reborn)
        if lives is not None:
            self._at(self.now + lives(), lambda: self._lose(name))
        return w.Joined(name, machine.dollars_per_hour)

    def _notice(self, name: w.NodeId) -> Message | None:
        node = self.nodes.get(name)
        if node is None or node.leaving:
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
        return w.Leaving(name)

    def _dismiss(self, node: _Node) -> None:
        """A machine that leaves goes once it has handed over all."""
        if node.leaving and not node.queue:
            self._at(self.now, lambda: self._lose(node.name))

    def _lose(self, name: w.NodeId) -> Message | None:
        node = self.nodes.pop(name, None)
        if node is None:
            return None
        self.maths.forget(name)
        self._count_fruitless(name, node)
        for work in node.queue:
            work.unwanted = True
        self._stop(node)
        node.reborn()
        return w.Lost(name)

    def _count_fruitless(self, name: w.NodeId, node: _Node) -> None:
        """Lives that end before anybody has brought anything: where that goes on and on, it is not bad luck."""
        self.fruitless += 1
        if self.fruitless > self.most_fruitless:
            needs = f", a task there computes for {node.queue[0].compute:.3g} s" if node.queue else ""
            raise JobError(
                f"{self.fruitless:,} lives of machines in a row ended before any task was done; the last one, {name}, "
                f"lived for {self.now - node.born:.3g} s{needs}: give the machines a longer lifetime or fewer "
                "seconds_per_sample, or the job a smaller batch"
            )

    def _plan(self, node: _Node, first: int) -> None:
        """Time the queue from this place on: a machine computes one task after the other."""
        free = node.queue[first - 1].end if first else node.free_at
        for work in node.queue[first:]:
            work.begin = max(work.ready, free)
            self._end(work, max(work.told, node.thawed_at))
            free = work.end
            work.plan = number = self.entries + 1 if node.frozen_at is None else 0
            if number:
                size = self.maths.bytes_up if work.brings else 0
                answer = partial(self._answer, node, work, number)
                self._at(work.end + node.machine.link.seconds(size), answer)

    def _end(self, work: _Work, told: float) -> None:
        """When the machine stops working at this: at the first minibatch before which it has been told to stop."""
        samples = w.samples_in(work.task.spans)
        work.end, work.done, work.aborted = work.begin + work.compute, samples, False
        if told < work.end:
            cuts = w.minibatch_cuts(samples, self.batch)
            began = self._done(work, told)
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
        node.free_at = max(node.free_at, work.end)
        self._dismiss(node)
        task = work.task
        if not work.brings:
            return w.Cancelled(task.id, task.node)
        self.fruitless = 0
        part = replace(task, spans=w.split(task.spans, work.done)[0]) if work.aborted else task
        moves_on = task.pull is not None and node.name in self.nodes  # its own weights, wanted or not
        skipped = work.unwanted and not moves_on
        loss, payload = (None, None) if skipped else self.maths.compute(part, work.weights)
        down = node.machine.link.seconds(work.size)
        seconds = {
            "down": down,
            "load": 0.0,
            "compute": work.spent + work.end - work.begin,
            "up": self.now - work.end,
        }
        traffic = (work.size, self.maths.bytes_up)
        facts = w.Facts(task.id, task.node, task.version, work.done, task.kind, loss, seconds, *traffic)
        return Arrival(facts, payload)

    def _at(self, when: float, happen: Callable[[], Message | None]) -> None:
        self.entries += 1
        heappush(self.agenda, (when, self.entries, happen))
