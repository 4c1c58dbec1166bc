"""The mesh on simulated machines: all peers in this process, on one virtual clock."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, Protocol

from oddlot.core.event_queue import EventQueue
from oddlot.core.events import Evaluated, Gone, Joined, LinkTraffic, Lost
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.engines.host import Arrival, Message
from oddlot.engines.mesh.links import Links
from oddlot.engines.mesh.messages import (
    FromPeer,
    ModelMessage,
    PeerMessage,
    State,
    Tensors,
    kind_of,
)
from oddlot.engines.mesh.network_faults import corrupted
from oddlot.engines.mesh.newcomer import Newcomer
from oddlot.engines.mesh.peer import Peer
from oddlot.engines.simulated.execution import Execution
from oddlot.engines.simulated.machine_lifecycle import MachineLifecycle
from oddlot.engines.simulated.stalled import stalled
from oddlot.engines.simulated.worker import Worker
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Link, Machine
from oddlot.machines.market import Zone

MakePeer = Callable[[NodeId, "SimulatedPort"], Peer | Newcomer]
"""Makes the peer of a machine that is ready."""
CONTROL_BYTES = 200
"""Bytes of a message without tensors, in the log: it takes only latency."""


class Computation(Protocol):
    """Computes the tasks of peers, and knows the sizes of models."""

    def compute(self, task: Task, weights: Any) -> tuple[float | None, Any]:
        """Return the mean loss and the payload of a task."""

    def evaluate(self, weights: Any) -> dict[str, float]:
        """Return the metrics of weights."""

    def travelled(self, tensors: Tensors, *, exact: bool) -> tuple[int, Tensors]:
        """Return the bytes of tensors on the network, and them as the receiver gets them.

        Without `exact`, the codec of the run encodes them.
        """


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message for a peer. `to` is empty for what concerns machines only."""

    to: NodeId
    message: FromPeer | Message


@dataclass(eq=False)
class SimulatedPeer:
    """A peer on a simulated machine."""

    peer: Peer | Newcomer
    worker: Worker
    delayed: list[Envelope] = field(default_factory=list)
    """Messages that arrived while it was frozen."""
    rings_at: float = inf
    """Time for which its alarm is planned."""


class SimulatedMesh:
    """Mailbox of all peers on simulated machines, and their ports."""

    def __init__(
        self,
        machines: Sequence[Machine | Zone],
        computation: Computation,
        make: MakePeer,
        batch: int,
        seed: int = 0,
        now: float = 0.0,
        taken: Collection[str] = (),
    ) -> None:
        self.computation, self.make, self.batch = computation, make, batch
        self.events: EventQueue[Envelope] = EventQueue(now)
        self.machine_events: EventQueue[Message] = EventQueue(now)
        """Events of workers and machines, whose messages are for their peer."""
        self.peers: dict[NodeId, SimulatedPeer] = {}
        self.links = Links()
        self.bytes_sent: Counter[tuple[NodeId, NodeId, str]] = Counter()
        """Bytes by sender, receiver and the kind of message."""
        self.groups: dict[NodeId, int] = {}
        """Sides of a partition of the network. Peers without one are on side 0."""
        self.disturbances: dict[NodeId, list[tuple[str, float]]] = {}
        """Faults of the next models that peers send, with the seconds of a delay."""
        self.lifecycle = MachineLifecycle(self.machine_events, machines, self, seed, taken)

    def will_return(self, machines: Collection[str]) -> bool:
        """Whether one of these machines has a peer, or gets one again unless its zone lacks capacity."""
        states = [self.lifecycle.states[name] for name in machines]
        return any(one.node or one.machine.seconds_to_return is not None for one in states)

    # --- the mailbox ---------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds of virtual time since the run began."""
        return self.events.now

    @property
    def is_spent(self) -> bool:
        """Whether no message will ever come of itself."""
        return not (self.events.heap or self.machine_events.heap)

    def next(self, until: float) -> Envelope | None:
        """Return the next message before `until`; the clock jumps to it."""
        while True:
            first, second = _first_time(self.events), _first_time(self.machine_events)
            if min(first, second) > until or (first == second == inf):
                break
            if second <= first:
                self.events.now = self.machine_events.now = second
                message = self.machine_events.next(second)
                if message is not None:
                    return Envelope(getattr(message, "node", "") or _node_of(message), message)
            else:
                self.events.now = self.machine_events.now = first
                envelope = self.events.next(first)
                if envelope is not None:
                    return envelope
        if until == inf:
            raise stalled(self.now, len(self.peers), self.lifecycle.zones.ended_traces)
        self.events.now = self.machine_events.now = max(self.now, until)
        return None

    def deliver(self, envelope: Envelope) -> None:
        """Let a peer handle a message, and plan its next alarm. Messages for lost peers are lost."""
        there = self.peers.get(envelope.to)
        if there is None:
            if isinstance(envelope.message, FromPeer):
                envelope.message.release()
            return
        if there.worker.frozen_at is not None and isinstance(envelope.message, FromPeer):
            there.delayed.append(envelope)
            return
        there.peer.receive(envelope.message, self.now)
        self.plan_alarm(envelope.to)

    def plan_alarm(self, node: NodeId) -> None:
        """Plan the next alarm of a peer."""
        there = self.peers.get(node)
        if there is None:
            return
        due = there.peer.alarm
        if due < there.rings_at:
            there.rings_at = due
            self.events.at(max(due, self.now), partial(self._ring, node, there, due))

    def _ring(self, node: NodeId, there: SimulatedPeer, due: float) -> None:
        if there.rings_at != due or self.peers.get(node) is not there:
            return
        there.rings_at = inf
        if there.worker.frozen_at is None:
            there.peer.ring(self.now)
            self.plan_alarm(node)

    # --- messages between peers ----------------------------------------------------------------

    def partition(self, side: Collection[NodeId]) -> None:
        """Cut these peers off from all others; no peers: the network is whole again."""
        self.groups = dict.fromkeys(side, 1)

    def send(self, sender: NodeId, receiver: NodeId, message: PeerMessage, tensors: Tensors | None) -> None:
        """Send a message over the links of both peers."""
        if receiver not in self.peers or not self._is_linked(sender, receiver):
            if tensors is not None:
                tensors.release()
            return
        size = CONTROL_BYTES
        arrives = self.now + self.links.latency(sender, receiver)
        faults = self.disturbances.get(sender, [])
        fault, late = faults.pop(0) if faults and isinstance(message, ModelMessage) else ("", 0.0)
        if fault == "corrupt" and tensors is not None:
            tensors = corrupted(tensors)
        if tensors is not None:
            tensor_bytes, tensors = self.computation.travelled(
                tensors, exact=not isinstance(message, ModelMessage)
            )
            size += tensor_bytes
            # Snapshots are for measurements, which take no virtual time.
            if isinstance(message, ModelMessage | State):
                arrives = self.links.transfer(sender, receiver, size, self.now)
        self.bytes_sent[sender, receiver, kind_of(message)] += size
        came = FromPeer(sender, message, size, tensors)
        if fault == "drop":
            came.release()
        else:
            self.events.at(arrives + late, partial(self._arrive, Envelope(receiver, came)))

    def _arrive(self, envelope: Envelope) -> Envelope | None:
        return envelope

    # --- peers on machines: the lifecycle's `Workers` --------------------------------------------

    def begin(self, node: NodeId, machine: Machine, delay: Times, link_delay: Times) -> None:
        """Add a peer on a machine that is ready."""
        own = replace(machine, link=Link())  # its tasks use no network
        worker = Worker(
            node,
            own,
            delay,
            lambda: 1.0,
            self.machine_events,
            self.batch,
            lambda: 0,
            self._answer,
            joined_at=self.now,
            free_at=self.now,
            last_contact=self.now,
        )
        self.links.links[node] = machine.link
        self.peers[node] = SimulatedPeer(self.make(node, SimulatedPort(self, node)), worker)

    def notice(self, node: NodeId) -> Message | None:
        """Let the peer leave: it tells the others, and is lost when its machine is."""
        there = self.peers.get(node)
        if there is not None and there.worker.frozen_at is None and isinstance(there.peer, Peer):
            there.peer.membership.leave()
            there.peer.flush()
        return None

    def lose(self, node: NodeId) -> Message | None:
        """End the peer of a machine."""
        there = self.peers.pop(node, None)
        if there is None:
            return None
        there.worker.is_gone = True
        there.worker.stop()
        self.links.remove(node)
        self.lifecycle.ended(node)
        self.lifecycle.loss_noticed(node)
        after = there.worker.machine.noticed_after_seconds
        if after < inf:
            self.events.at(self.now + after, partial(self._tell_of_loss, node))
        return Gone(node)

    def _tell_of_loss(self, node: NodeId) -> None:
        """Let all peers notice that nothing listens at an address any more."""
        for name, other in list(self.peers.items()):
            if (
                isinstance(other.peer, Peer)
                and other.worker.frozen_at is None
                and self._is_linked(name, node)
            ):
                other.peer.gone(node, self.now)
                self.plan_alarm(name)

    def _is_linked(self, one: NodeId, other: NodeId) -> bool:
        return self.groups.get(one, 0) == self.groups.get(other, 0)

    def freeze(self, node: NodeId) -> None:
        """Stop a peer where it is."""
        there = self.peers.get(node)
        if there is not None and there.worker.frozen_at is None:
            there.worker.freeze()

    def thaw(self, node: NodeId) -> None:
        """Let a frozen peer continue with the messages that it got."""
        there = self.peers.get(node)
        if there is None or there.worker.frozen_at is None:
            return
        there.worker.thaw(there.worker.frozen_at)
        delayed, there.delayed = there.delayed, []
        for envelope in delayed:
            self.events.at(self.now, partial(self._arrive, envelope))
        self.plan_alarm(node)

    def _answer(self, worker: Worker, execution: Execution) -> Message:
        """Return the message about the end of a task of the peer itself."""
        if not execution.has_update:
            return execution.cancelled(self.now)
        self.lifecycle.progress.task_completed()
        loss, payload = self.computation.compute(execution.computed_task, execution.weights)
        facts = execution.facts(self.now, worker.machine.link, loss, 0)
        return Arrival(facts, payload)


class SimulatedPort:
    """The port of one peer of a `SimulatedMesh`."""

    def __init__(self, mesh: SimulatedMesh, node: NodeId) -> None:
        self.mesh, self.node = mesh, node

    def send(self, peer: NodeId, message: PeerMessage, tensors: Tensors | None = None) -> None:
        """Send a message to a peer."""
        self.mesh.send(self.node, peer, message, tensors)

    def traffic(self) -> Iterable[LinkTraffic]:
        """Return the bytes sent to each peer so far."""
        found: dict[NodeId, Counter[str]] = {}
        for (sender, receiver, kind), count in self.mesh.bytes_sent.items():
            if sender == self.node:
                found.setdefault(receiver, Counter())[kind] += count
        return [LinkTraffic(peer, dict(sent)) for peer, sent in found.items()]

    def know(self, peer: NodeId, address: str) -> None:
        """Do nothing: the mesh knows all peers."""

    def address_of(self, peer: NodeId) -> str:
        """Return the name: it is the address."""
        return peer

    def start(self, task: Task, weights: Any) -> None:
        """Compute a task on the peer's own machine."""
        if (there := self.mesh.peers.get(self.node)) is not None:
            there.worker.add(task, weights, 0, 0)

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Stop at the next minibatch."""
        self.hand_over(task, node)

    def evict(self, node: NodeId) -> None:
        """Do nothing: a peer that hangs cannot end itself."""

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """End a task after its current minibatch."""
        there = self.mesh.peers.get(self.node)
        place = there.worker.find(task) if there else None
        if there is not None and place is not None:
            there.worker.request_stop(place)

    def evaluate(self, version: int, weights: Any) -> None:
        """Evaluate weights, which takes no virtual time."""
        metrics = self.mesh.computation.evaluate(weights)
        envelope = Envelope(self.node, Evaluated(version, metrics))
        self.mesh.events.at(self.mesh.now, lambda: envelope)

    def loaded(self) -> Iterable[TaskId]:
        """Return no task: each is computed at its virtual end."""
        return ()


def _first_time(events: EventQueue[Any]) -> float:
    return events.heap[0][0] if events.heap else inf


def _node_of(message: Message) -> NodeId:
    """Return the peer that a message of its machine is for."""
    if isinstance(message, Arrival):
        return message.facts.sender
    if isinstance(message, Joined | Lost | Gone):
        return message.node
    return ""
