"""The mesh on simulated machines: all peers in this process, on one virtual clock.

Also the network links between peers, the computation of their tasks, and the port of each peer.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from oddlot.core.events import Gone, LinkTraffic
from oddlot.core.tasks import NodeId, Task, TaskLoss
from oddlot.engines.host import Envelope, PortWrapper
from oddlot.engines.mesh import messages
from oddlot.engines.mesh.network_faults import corrupted
from oddlot.engines.mesh.newcomer import Newcomer
from oddlot.engines.mesh.packing import copied, travels_unchanged
from oddlot.engines.mesh.peer import Peer
from oddlot.engines.simulated.compute import ExactComputation
from oddlot.engines.simulated.engine import Simulator
from oddlot.engines.simulated.worker import SimulatedWorker
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Link, Machine
from oddlot.machines.market import Zone
from oddlot.model.block_pool import Pool
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.payload import Payload
from oddlot.train.learner import Learner
from oddlot.wire.codec import Codec
from oddlot.wire.plain import Plain


@dataclass
class Links:
    """The network links of peers, and the times when they are free.

    A transfer occupies the sender's uplink and the receiver's downlink until both have carried its bytes, at the rate
    of the slower link. Messages without tensors are small: they take the latency and occupy nothing.
    """

    links: dict[NodeId, Link] = field(default_factory=dict)
    up_free_at: dict[NodeId, float] = field(default_factory=dict)
    down_free_at: dict[NodeId, float] = field(default_factory=dict)

    def transfer(self, sender: NodeId, receiver: NodeId, size: int, now: float) -> float:
        """Occupy both links with a transfer of `size` bytes. Return its arrival time."""
        up, down = self.links[sender], self.links[receiver]
        begin = max(now, self.up_free_at.get(sender, now), self.down_free_at.get(receiver, now))
        rate = min(up.megabits_per_second, down.megabits_per_second) * 1e6
        end = begin + size * 8 / rate
        self.up_free_at[sender] = self.down_free_at[receiver] = end
        return end + self.latency(sender, receiver)

    def latency(self, sender: NodeId, receiver: NodeId) -> float:
        """Return the seconds of a small message: half of the sum of both peers' latencies."""
        both = self.links[sender].latency_milliseconds + self.links[receiver].latency_milliseconds
        return both / 2e3

    def remove(self, peer: NodeId) -> None:
        """Forget a peer."""
        for known in (self.links, self.up_free_at, self.down_free_at):
            known.pop(peer, None)


class PeerComputation(ExactComputation):
    """The computation of all peers' tasks, with one learner. Exchanged models are encoded; gradients are not sent."""

    def __init__(self, learner: Learner, pool: Pool, codec: Codec) -> None:
        super().__init__(learner, pool, Plain())
        self.exchange_codec = codec
        self.bytes_down = 0

    def compute(self, task: Task, weights: FlatBuffer) -> tuple[TaskLoss, Payload]:
        """Return the task's loss and its update."""
        self.runner.learner.holds = None  # versions of several peers have the same numbers
        found = super().compute(task, weights)
        self.bytes_up = 0
        return found

    def travelled(self, tensors: messages.Tensors, *, exact: bool) -> tuple[int, messages.Tensors]:
        """Return the size of tensors on the network, in bytes, and the tensors that the receiver gets."""
        layout = tensors.weights.layout
        codec = Plain() if exact else self.exchange_codec
        if isinstance(codec, Plain) and travels_unchanged(layout, tensors.layers):
            size = layout.bytes
        else:
            size, tensors = copied(tensors, codec, self.pool.take, self.pool.give)
        optimizer = tensors.optimizer or {}
        return size + sum(one.nbytes for one in optimizer.values()), tensors


MakePeer = Callable[[NodeId, "SimulatedPort"], Peer | Newcomer]
"""Makes the peer of a machine that is ready."""
CONTROL_BYTES = 200
"""Logged size of a message without tensors, in bytes. Its transfer takes only the latency."""


@dataclass(frozen=True, slots=True)
class AlarmDue:
    """Message that the receiver's alarm is due."""


@dataclass(frozen=True, slots=True)
class LossNoticed:
    """Message that nothing listens at the address of a peer, because its process has ended."""

    node: NodeId


@dataclass(eq=False)
class SimulatedPeer:
    """A peer on a simulated machine."""

    peer: Peer | Newcomer
    worker: SimulatedWorker
    delayed: list[Envelope] = field(default_factory=list)
    """Messages that arrived while it was frozen."""
    rings_at: float = inf
    """Time of its planned alarm."""


class SimulatedMesh(Simulator):
    """Peers on simulated machines, and the network between them. The host of a worker is the peer with its name."""

    computation: PeerComputation

    def __init__(
        self,
        machines: Sequence[Machine | Zone],
        computation: PeerComputation,
        make: MakePeer,
        batch: int,
        seed: int = 0,
        now: float = 0.0,
        taken: Collection[str] = (),
    ) -> None:
        super().__init__(machines, computation, batch, seed, now, taken)
        self.make = make
        self.peers: dict[NodeId, SimulatedPeer] = {}
        self.links = Links()
        self.bytes_sent: Counter[tuple[NodeId, NodeId, str]] = Counter()
        """Bytes by sender, receiver and the kind of message."""
        self.groups: dict[NodeId, int] = {}
        """Side of each peer in a partition of the network. Default: 0."""
        self.replaced: set[NodeId] = set()
        """Replaced peers. Their unread models are dropped, because replacements process the samples again."""
        self.disturbances: dict[NodeId, list[tuple[str, float]]] = {}
        """Faults of the next models that each peer sends, with delays in seconds."""

    def will_return(self, machines: Collection[str]) -> bool:
        """Return whether one of these machines has a peer, or gets one again if its zone has capacity."""
        states = [self.lifecycle.states[name] for name in machines]
        return any(one.node or one.machine.seconds_to_return is not None for one in states)

    # --- the mailbox ---------------------------------------------------------------------------

    def next(self, until: float) -> Envelope | None:
        """Return the next message before `until`."""
        return self.next_envelope(until)

    def deliver(self, envelope: Envelope) -> None:
        """Pass a message to a peer, and plan the peer's next alarm. Drop messages for lost peers."""
        there = self.peers.get(envelope.to)
        if there is None:
            if isinstance(envelope.message, messages.FromPeer):
                envelope.message.release()
            return
        is_frozen = there.worker.frozen_at is not None
        match envelope.message:
            case messages.FromPeer(sender=sender, tensors=messages.Tensors()) as message if (
                sender in self.replaced
            ):
                message.release()
                return
            case AlarmDue():
                there.peer.ring(self.now)
            case LossNoticed(node):
                if not is_frozen and self._is_linked(envelope.to, node):
                    there.peer.gone(node, self.now)
            case messages.FromPeer() if is_frozen:
                there.delayed.append(envelope)
            case message:
                there.peer.receive(message, self.now)
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

    def _ring(self, node: NodeId, there: SimulatedPeer, due: float) -> Envelope | None:
        if there.rings_at != due or self.peers.get(node) is not there:
            return None
        there.rings_at = inf
        return Envelope(node, AlarmDue()) if there.worker.frozen_at is None else None

    # --- messages between peers ----------------------------------------------------------------

    def partition(self, side: Collection[NodeId]) -> None:
        """Separate these peers from all others. An empty `side` ends the partition."""
        self.groups = dict.fromkeys(side, 1)

    def send(
        self,
        sender: NodeId,
        receiver: NodeId,
        message: messages.PeerMessage,
        tensors: messages.Tensors | None,
    ) -> None:
        """Send a message over the links of both peers."""
        if receiver not in self.peers or not self._is_linked(sender, receiver):
            if tensors is not None:
                tensors.release()
            return
        size = CONTROL_BYTES
        arrives = self.now + self.links.latency(sender, receiver)
        faults = self.disturbances.get(sender, [])
        fault, late = faults.pop(0) if faults and isinstance(message, messages.ModelMessage) else ("", 0.0)
        if fault == "corrupt" and tensors is not None:
            tensors = corrupted(tensors)
        if tensors is not None:
            tensor_bytes, tensors = self.computation.travelled(
                tensors, exact=not isinstance(message, messages.ModelMessage)
            )
            size += tensor_bytes
            # Measurements, such as snapshots, take no virtual time.
            if isinstance(message, messages.ModelMessage | messages.State):
                arrives = self.links.transfer(sender, receiver, size, self.now)
        self.bytes_sent[sender, receiver, messages.kind_of(message)] += size
        came = messages.FromPeer(sender, message, size, tensors)
        if fault == "drop":
            came.release()
        else:
            self.plan(arrives + late, Envelope(receiver, came))

    def disturb(self, node: NodeId, kind: str, seconds: float) -> None:
        """Delay, drop or corrupt the next model that a peer sends."""
        self.disturbances.setdefault(node, []).append((kind, seconds))

    def _is_linked(self, one: NodeId, other: NodeId) -> bool:
        return self.groups.get(one, 0) == self.groups.get(other, 0)

    # --- peers on machines ---------------------------------------------------------------------

    def host_of(self, node: NodeId) -> NodeId:
        """Return the host of a worker: the peer with its name."""
        return node

    def begin(self, node: NodeId, machine: Machine, delay: Times, link_delay: Times) -> None:
        """Add a peer on a machine that is ready. Its tasks use no network."""
        super().begin(node, replace(machine, link=Link()), delay, lambda: 1.0)
        self.links.links[node] = machine.link
        peer = self.make(node, SimulatedPort(self, node))
        self.peers[node] = SimulatedPeer(peer, self.workers[node])

    def notice(self, node: NodeId) -> None:
        """Give a peer notice of a preemption. It notifies the others, and is lost with its machine."""
        there = self.peers.get(node)
        if there is not None and there.worker.frozen_at is None and isinstance(there.peer, Peer):
            there.peer.membership.leave()
            there.peer.flush()

    def leave(self, node: NodeId) -> None:
        """Let a peer leave, and end its machine."""
        self.notice(node)
        self.kill(node)

    def _lost(self, worker: SimulatedWorker) -> Envelope:
        """End the peer, and let the others notice after `noticed_after_seconds`."""
        node, after = worker.node, worker.machine.noticed_after_seconds
        for envelope in self.peers.pop(node).delayed:
            envelope.message.release()
        self.links.remove(node)
        self._forget(worker)
        if after < inf:
            self.events.at(self.now + after, partial(self._tell_of_loss, node))
        return Envelope(node, Gone(node))

    def _tell_of_loss(self, node: NodeId) -> None:
        """Notify all peers of the loss of a peer."""
        for name in self.peers:
            self.plan(self.now, Envelope(name, LossNoticed(node)))

    def _thawed(self, worker: SimulatedWorker) -> None:
        """Deliver the messages that arrived while a peer was frozen."""
        there = self.peers[worker.node]
        delayed, there.delayed = there.delayed, []
        for envelope in delayed:
            self.plan(self.now, envelope)
        self.plan_alarm(worker.node)


class SimulatedPort(PortWrapper):
    """The port of one peer of a `SimulatedMesh`."""

    def __init__(self, mesh: SimulatedMesh, node: NodeId) -> None:
        super().__init__(mesh)
        self.mesh, self.node = mesh, node

    def send(
        self, peer: NodeId, message: messages.PeerMessage, tensors: messages.Tensors | None = None
    ) -> None:
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
        """Return the peer's name. It is also its address."""
        return peer

    def evaluate(self, version: int, weights: Any) -> None:
        """Evaluate weights. This takes no virtual time."""
        self.mesh.evaluate(version, weights, self.node)
