"""The shell around a conductor that every engine shares: decide, then act, in order."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Protocol

from oddlot.core.commands import (
    Abort,
    Action,
    Blend,
    Drop,
    Evaluate,
    Evict,
    HandOver,
    Keep,
    Release,
    Start,
    Step,
)
from oddlot.core.conductor import Conductor
from oddlot.core.errors import ProtocolError, Refusal
from oddlot.core.events import Arrived, Cancelled, Changed, Evaluated, Lost, Refused, Stimulus, Ticked
from oddlot.core.records import Record
from oddlot.core.spans import samples_in
from oddlot.core.tasks import Facts, NodeId, Task, TaskId, UpdateId, node_of

Observer = Callable[[Record], None]
"""Sees every record after it was acted on. It may write files and keep figures; it decides nothing."""
Adviser = Callable[[Record], Stimulus | None]
"""Sees every record after the observers, and computes what the strategy is told, as an event of the log, of which a
replay needs no adviser."""


class Change(Protocol):
    """How the weights moved in a measured merge."""

    @property
    def norm(self) -> float:
        """The Euclidean length of the change."""

    @property
    def inner(self) -> float | None:
        """The inner product of its direction with the one before, each summed over a window of merges."""


class Store(Protocol):
    """The model, and how it changes. `oddlot.train.store.Store`, or a shadow that computes nothing."""

    def acquire(self, version: int) -> Any:
        """The weights of a version, unchanged until they are released."""

    def release(self, version: int) -> None:
        """Let go of what `acquire` gave."""

    def receive(self, facts: Facts, payload: Any) -> None:
        """Put an update into the inbox, or raise `Refusal`."""

    def step(
        self, shares: Mapping[UpdateId, float], measure: int = 0, merged: int | None = None
    ) -> Change | None:
        """One step of the rule along the sum of share x direction; a schedule counts what was `merged` before."""

    def blend(self, shares: Mapping[UpdateId, float], measure: int = 0) -> Change | None:
        """Move towards points."""

    def drop(self, update: UpdateId) -> None:
        """Forget an update."""


class Port(Protocol):
    """The outside, as a host sees it. Nothing here waits."""

    def start(self, task: Task, weights: Any) -> None:
        """Give the task to its node, to start from these weights."""

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Ask the node to stop at its next minibatch; an arrival or `Cancelled` follows unless it is lost."""

    def evict(self, node: NodeId) -> None:
        """Kill the node, which has hung; `Lost` follows."""

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """Ask the node to answer after the minibatch that it computes; an arrival follows unless it is lost."""

    def evaluate(self, version: int, weights: Any) -> None:
        """Measure these weights; `Evaluated` follows."""

    def loaded(self) -> Iterable[TaskId]:
        """The open tasks that read their version's memory no more; they may be told again."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """An answer as it comes in: facts for the conductor, a payload for the store, still together."""

    facts: Facts
    payload: Any
    """with `release()`, to give its memory back; None where nothing is computed"""


Message = Stimulus | Arrival


@dataclass
class Host:
    """One conductor, its store and its port."""

    conductor: Conductor
    store: Store
    port: Port
    observers: list[Observer] = field(default_factory=list)
    advisers: list[Adviser] = field(default_factory=list)
    holds: dict[TaskId, int] = field(default_factory=dict)
    """the version whose memory each task out there still reads"""
    evaluating: list[int] = field(default_factory=list)
    settled: bool = True
    """false while an event is dealt with: an error then leaves books that nobody may go on from"""
    story: deque[Record] = field(default_factory=lambda: deque(maxlen=12))

    @property
    def alarm(self) -> float:
        """When to call `ring` at the latest; infinity for never."""
        return self.conductor.alarm

    def ring(self, now: float) -> None:
        """Time has come."""
        if self.conductor.alarm <= now < inf:
            self.handle(Ticked(), now)

    def receive(self, message: Message, now: float) -> None:
        """Something came in."""
        if isinstance(message, Arrival):
            self.arrive(message, now)
        else:
            self.handle(message, now)

    def handle(self, event: Stimulus, now: float) -> None:
        """Decide about the event, act, and tell the observers."""
        self.settled = False
        lost_tasks = list(self.conductor.busy.get(event.node, ())) if isinstance(event, Lost) else ()
        try:
            record = self.conductor.handle(event, now)
        except ProtocolError as error:
            raise error.retold(f"{error}\nIt came about like this:\n{self._tell()}  {event}") from None
        self._let_go(event, lost_tasks)
        self.story.append(record)
        changes = self._act(record)
        for observer in self.observers:
            observer(record)
        for follows in (*changes, *(adviser(record) for adviser in self.advisers)):
            if follows is not None:
                self.handle(follows, now)
        self.settled = True

    def arrive(self, arrival: Arrival, now: float) -> None:
        """An answer came in: an echo is dropped, bad numbers are refused, the rest goes into the inbox."""
        facts = arrival.facts
        if not self.conductor.expects(facts.id):
            self._discard(arrival)
            lies = facts.sender != node_of(facts.id) or facts.samples < 1
            self.handle(Refused(facts.id, "an echo that lies") if lies else Arrived(facts), now)
            return
        for task in self.port.loaded():
            self._release(task)  # before the merge, which then writes in place
        try:
            self._believe(facts)
            self.store.receive(facts, arrival.payload)
        except Refusal as refusal:
            self._discard(arrival)
            self.handle(Refused(facts.id, str(refusal), refusal.code), now)
            return
        self.handle(Arrived(facts), now)

    def evaluate(self, version: int) -> None:
        """Have the current or a kept version measured."""
        if version not in self.evaluating:
            self.evaluating.append(version)
            self.port.evaluate(version, self.store.acquire(version))

    def _discard(self, arrival: Arrival) -> None:
        if arrival.payload is not None:
            arrival.payload.release()

    def _believe(self, facts: Facts) -> None:
        task = self.conductor.open[facts.id]
        if (facts.sender, facts.based_on, facts.kind) != (task.node, task.version, task.kind):
            told = f"{facts.id} answers from {facts.sender} with another version or kind than it was given"
            raise Refusal(told, "other_task", task=facts.id, node=facts.sender)
        given = samples_in(task.spans)
        if not 1 <= facts.samples <= given:
            told = f"{facts.id} claims {facts.samples} of {given} samples"
            raise Refusal(told, "wrong_samples", task=facts.id, samples=facts.samples, given=given)

    def _let_go(self, event: Stimulus, tasks: "list[TaskId] | tuple[()]") -> None:
        """Release the version that an ended task or evaluation had needed."""
        match event:
            case Arrived(facts):
                self._release(facts.id)
            case Cancelled(task) | Refused(task):
                self._release(task)
            case Lost():
                for task in tasks:
                    self._release(task)
            case Evaluated(version) if version in self.evaluating:
                self.evaluating.remove(version)
                self.store.release(version)

    def _release(self, task: TaskId) -> None:
        version = self.holds.pop(task, None)
        if version is not None:
            self.store.release(version)

    def _act(self, record: Record) -> list[Changed]:
        """Carry out what was decided; what is to be told of measured merges."""
        merges = sum(isinstance(action, Step | Blend) for action in record.actions)
        version, changes = self.conductor.version - merges, list[Changed]()
        for action in record.actions:
            change = self._perform(action)
            if isinstance(action, Step | Blend):
                version += 1
                if action.measure:
                    changes.append(_changed(version, change))
        return changes

    def _perform(self, action: Action) -> Change | None:
        """Carry it out; how the weights moved, where that was measured."""
        change: Change | None = None
        match action:
            case Start(task):
                self.holds[task.id] = task.version
                self.port.start(task, self.store.acquire(task.version))
            case Abort() | Evict() | HandOver():
                self._interrupt(action)
            case Step(shares, measure, merged):
                change = self.store.step(shares, measure, merged)
            case Blend(shares, measure):
                change = self.store.blend(shares, measure)
            case Drop(update):
                self.store.drop(update)
            case Evaluate(version):
                self.evaluate(version)
            case Keep(version):
                self.store.acquire(version)
            case Release(version):
                self.store.release(version)
        return change

    def _interrupt(self, action: Abort | Evict | HandOver) -> None:
        """A node is to stop, or to hand over what it has."""
        match action:
            case Abort(task_id, node):
                self.port.abort(task_id, node)
            case Evict(node):
                self.port.evict(node)
            case HandOver(task_id):
                self.port.hand_over(task_id, node_of(task_id))

    def _tell(self) -> str:
        lines = [f"  {record.now:.3f} {record.event} -> {list(record.actions)}\n" for record in self.story]
        return "".join(lines)


def _changed(version: int, change: Change | None) -> Changed:
    """Without figures where nothing is computed, and without those that are too large to be numbers."""
    norm, inner = (None, None) if change is None else (change.norm, change.inner)
    return Changed(version, *(None if one is None or not isfinite(one) else one for one in (norm, inner)))
