"""The host of a conductor, on any engine: it passes events to the conductor and executes the conductor's actions.

Also the interfaces of the host: the store of the model, the port to the workers, messages, observers and advisers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, NamedTuple, Protocol

from oddlot.core import commands
from oddlot.core.conductor import Conductor
from oddlot.core.events import (
    Arrived,
    Cancelled,
    Changed,
    Combined,
    Evaluated,
    Lost,
    Stimulus,
    Ticked,
    UpdateRejected,
)
from oddlot.core.peers import Drift
from oddlot.core.records import Record
from oddlot.core.sample_spans import samples_in
from oddlot.core.sum_tree import samples_sent
from oddlot.core.support.errors import ProtocolError, Rejection
from oddlot.core.tasks import Facts, NodeId, Task, TaskId, UpdateId, node_of

MAX_WEIGHT = 2**53
"""Largest weight of an update. A float represents all integers up to it."""
Observer = Callable[[Record], None]
"""A function that receives every record after its actions. It must not change the run."""
Adviser = Callable[[Record], Stimulus | None]
"""A function that receives every record after the observers and may return an event for the strategy. The event is
logged, so a replay needs no adviser."""


class WeightChange(Protocol):
    """The change of the weights in a measured merge."""

    @property
    def norm(self) -> float | None:
        """Return the Euclidean norm of the change, or None if it was not measured."""

    @property
    def inner(self) -> float | None:
        """Return the inner product of this direction and the previous direction. Each is the sum over a window of
        merges."""

    @property
    def drift(self) -> Drift | None:
        """Return the distance from the marked weights, or None if it was not measured or is not finite."""

    @property
    def left_out(self) -> Mapping[UpdateId, float] | None:
        """Return the share of each update's values that a robust rule left out, or None without a rule."""


class ModelStore(Protocol):
    """Interface of the model's store: `oddlot.model.weight_store.WeightStore`, or a store that computes nothing."""

    version: int
    """The newest version."""

    def acquire(self, version: int) -> Any:
        """Return the weights of a version, unchanged until they are released."""

    def release(self, version: int) -> None:
        """Release a version that `acquire` returned."""

    def acquire_evaluated(self, version: int) -> Any:
        """Return the weights to evaluate a version with. They may be an average."""

    def release_evaluated(self, version: int) -> None:
        """Release the weights that `acquire_evaluated` returned."""

    def receive(self, facts: Facts, payload: Any) -> None:
        """Put an update into the inbox. Raise `Rejection` if it is invalid."""

    def step(
        self,
        shares: Mapping[UpdateId, float],
        measure: int = 0,
        merged: int | None = None,
        drift: commands.DriftOf | None = None,
        chunks: Sequence[int] | None = None,
    ) -> WeightChange | None:
        """Take an optimizer step with the sum of share x update.

        `merged`: samples so far, for the learning rate. `chunks`: chunks of each update of kind `sum`.
        """

    def blend(self, shares: Mapping[UpdateId, float], measure: int = 0) -> WeightChange | None:
        """Average weights into the model."""

    def drop(self, update: UpdateId) -> None:
        """Discard an update."""

    def mark(self) -> None:
        """Mark the current weights. Later steps measure the drift from them."""


class Port(Protocol):
    """The host's interface to the workers. No method blocks."""

    def start(self, task: Task, weights: Any) -> None:
        """Send a task and its weights to its worker."""

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Ask a worker to stop a task before its next minibatch. An update or `Cancelled` follows, or `Lost`."""

    def evict(self, node: NodeId) -> None:
        """Kill a worker that hangs. `Lost` follows."""

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """Ask a worker to end a task after its current minibatch. An update follows, or `Lost`."""

    def evaluate(self, version: int, weights: Any) -> None:
        """Evaluate weights. `Evaluated` follows."""

    def loaded(self) -> Iterable[TaskId]:
        """Return tasks that no longer read the memory of their version. A task may be returned twice."""


class PortWrapper:
    """A port that forwards all requests to `port`."""

    def __init__(self, port: Port) -> None:
        self.port = port

    def start(self, task: Task, weights: Any) -> None:
        """Send a task to its worker."""
        self.port.start(task, weights)

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Ask a worker to stop a task."""
        self.port.abort(task, node)

    def evict(self, node: NodeId) -> None:
        """Kill a worker that hangs."""
        self.port.evict(node)

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """Ask a worker to end a task early."""
        self.port.hand_over(task, node)

    def evaluate(self, version: int, weights: Any) -> None:
        """Evaluate weights."""
        self.port.evaluate(version, weights)

    def loaded(self) -> Iterable[TaskId]:
        """Return tasks that no longer read the memory of their version."""
        return self.port.loaded()


@dataclass(frozen=True, slots=True)
class ReceivedUpdate:
    """A received update: facts for the conductor, and a payload for the store."""

    facts: Facts
    payload: Any
    """Tensors of the update, with a method `release()`. None if nothing is computed."""


Message = Stimulus | ReceivedUpdate


class Envelope(NamedTuple):
    """A message and its receiver, a hub or a peer."""

    to: NodeId
    message: Any
    """A `Message` or, on a mesh, a `FromPeer`."""


@dataclass
class Host:
    """The host of a run. It connects a conductor, a store and an engine."""

    conductor: Conductor
    store: ModelStore
    port: Port
    observers: list[Observer] = field(default_factory=list)
    advisers: list[Adviser] = field(default_factory=list)
    holds: dict[TaskId, int] = field(default_factory=dict)
    """Version that each open task still reads from memory."""
    evaluating: list[int] = field(default_factory=list)
    evaluated: dict[int, Any] = field(default_factory=dict)
    """Weights that are being evaluated, by version."""
    on_evaluated: Callable[[int, Mapping[str, float], Any], None] | None = None
    """Called with each evaluated version, its metrics and its weights, before the weights are released."""
    settled: bool = True
    """Whether no event is being handled. False after an error: the conductor's state must then not be saved."""
    latest: deque[Record] = field(default_factory=lambda: deque(maxlen=12))

    @property
    def alarm(self) -> float:
        """Return the due time of `ring`; infinity for never."""
        return self.conductor.alarm

    def ring(self, now: float) -> None:
        """Handle due alarms and timeouts."""
        if self.conductor.alarm <= now < inf:
            self.handle(Ticked(), now)

    def receive(self, message: Message, now: float) -> None:
        """Handle a message."""
        if isinstance(message, ReceivedUpdate):
            self.arrive(message, now)
        else:
            self.handle(message, now)

    def handle(self, event: Stimulus, now: float) -> None:
        """Let the conductor handle an event, execute its actions, and call the observers."""
        self.settled = False
        lost_tasks = list(self.conductor.busy.get(event.node, ())) if isinstance(event, Lost) else ()
        try:
            record = self.conductor.handle(event, now)
        except ProtocolError as error:
            raise error.with_message(f"{error}\nLatest records:\n{self._tell()}  {event}") from None
        self._let_go(event, lost_tasks)
        self.latest.append(record)
        changes = self._act(record)
        for observer in self.observers:
            observer(record)
        for follows in (*changes, *(adviser(record) for adviser in self.advisers)):
            if follows is not None:
                self.handle(follows, now)
        self.settled = True

    def arrive(self, arrival: ReceivedUpdate, now: float) -> None:
        """Handle an update: drop it if it is late, reject it if it is invalid, or put it into the inbox."""
        facts = arrival.facts
        if not self.conductor.expects(facts.id):
            self._discard(arrival)
            lies = facts.sender != node_of(facts.id) or facts.samples < 1
            self.handle(
                UpdateRejected(facts.id, "an echo with inconsistent facts") if lies else Arrived(facts), now
            )
            return
        for task in self.port.loaded():
            self._release(task)  # so that the merge can write in place
        try:
            self._believe(facts)
            self.store.receive(facts, arrival.payload)
        except Rejection as rejection:
            self._discard(arrival)
            gate = rejection.fields.get("gate", "")
            self.handle(UpdateRejected(facts.id, str(rejection), rejection.code, gate), now)
            return
        self.handle(Arrived(facts), now)

    def evaluate(self, version: int) -> None:
        """Evaluate the newest version or a kept version."""
        if version not in self.evaluating:
            self.evaluating.append(version)
            weights = self.evaluated[version] = self.store.acquire_evaluated(version)
            self.port.evaluate(version, weights)

    def _discard(self, arrival: ReceivedUpdate) -> None:
        if arrival.payload is not None:
            arrival.payload.release()

    def _believe(self, facts: Facts) -> None:
        task = self.conductor.open[facts.id]
        if (facts.sender, facts.based_on, facts.kind) != (task.node, task.version, task.kind):
            message = f"{facts.id} is an update of {facts.sender} with another version or kind than its task"
            raise Rejection(message, "other_task", task=facts.id, node=facts.sender)
        given = samples_in(task.spans)
        sent = samples_sent(facts.kind, min(facts.samples, given), given)
        if not 1 <= facts.samples <= given or sent != facts.samples:
            message = f"{facts.id} reports {facts.samples} samples, but its task has {given}"
            raise Rejection(message, "wrong_samples", task=facts.id, samples=facts.samples, given=given)
        if not 0 <= facts.weight_merged <= MAX_WEIGHT:
            message = f"{facts.id} reports the weight {facts.weight}: it must be from 0 to 2^53"
            raise Rejection(message, "wrong_weight", task=facts.id, weight=facts.weight)

    def _let_go(self, event: Stimulus, tasks: "list[TaskId] | tuple[()]") -> None:
        """Release the version of a task or evaluation that ended."""
        match event:
            case Arrived(facts):
                self._release(facts.id)
            case Cancelled(task) | UpdateRejected(task):
                self._release(task)
            case Lost():
                for task in tasks:
                    self._release(task)
            case Evaluated(version, metrics) if version in self.evaluating:
                self.evaluating.remove(version)
                weights = self.evaluated.pop(version)
                if self.on_evaluated is not None:
                    self.on_evaluated(version, metrics, weights)
                self.store.release_evaluated(version)

    def _release(self, task: TaskId) -> None:
        version = self.holds.pop(task, None)
        if version is not None:
            self.store.release(version)

    def _act(self, record: Record) -> list[Changed | Combined]:
        """Execute actions. Return the events of merges by a robust rule and of measured merges."""
        merges = sum(
            isinstance(action, commands.Step | commands.Blend | commands.Average) for action in record.actions
        )
        version, changes, combined = self.conductor.version - merges, list[Changed](), list[Combined]()
        for action in record.actions:
            change = self._perform(action)
            if isinstance(action, commands.Step | commands.Blend | commands.Average):
                version += 1
                if change is not None and change.left_out is not None:
                    combined.append(Combined(version, change.left_out))
                if _is_measured(action):
                    changes.append(_changed(version, change))
        return [*combined, *changes]

    def _perform(self, action: commands.Action) -> WeightChange | None:
        """Execute an action. Return the change of the weights if the action is a merge that reports it."""
        change: WeightChange | None = None
        match action:
            case commands.Start(task):
                self.holds[task.id] = task.version
                self.port.start(task, self.store.acquire(task.version))
            case commands.Abort() | commands.Evict() | commands.HandOver():
                self._interrupt(action)
            case commands.Step(shares, measure, merged, drift, chunks):
                change = self.store.step(shares, measure, merged, drift, chunks)
            case commands.Blend(shares, measure):
                change = self.store.blend(shares, measure)
            case commands.Drop(update):
                self.store.drop(update)
            case commands.Evaluate(version):
                self.evaluate(version)
            case commands.Keep(version):
                self.store.acquire(version)
            case commands.Release(version):
                self.store.release(version)
            case commands.Mark():
                self.store.mark()
        return change

    def _interrupt(self, action: commands.Abort | commands.Evict | commands.HandOver) -> None:
        """Ask a worker to stop a task or to end it early."""
        match action:
            case commands.Abort(task_id, node):
                self.port.abort(task_id, node)
            case commands.Evict(node):
                self.port.evict(node)
            case commands.HandOver(task_id):
                self.port.hand_over(task_id, node_of(task_id))

    def _tell(self) -> str:
        lines = [f"  {record.now:.3f} {record.event} -> {list(record.actions)}\n" for record in self.latest]
        return "".join(lines)


def _is_measured(merge: commands.Step | commands.Blend | commands.Average) -> bool:
    """Return whether a merge is measured, so that `Changed` follows."""
    if isinstance(merge, commands.Average):
        return False
    return bool(merge.measure) or (isinstance(merge, commands.Step) and merge.drift is not None)


def _changed(version: int, change: WeightChange | None) -> Changed:
    """Return the event of a measured merge, without values that were not computed or are not finite."""
    norm, inner = (None, None) if change is None else (change.norm, change.inner)
    norm, inner = (None if one is None or not isfinite(one) else one for one in (norm, inner))
    return Changed(version, norm, inner, change.drift if change else None)
