"""The mailbox and port of a peer in a process of its own."""

import queue
import time
from collections.abc import Iterable
from typing import Any

from oddlot.core.errors import OddlotError
from oddlot.core.events import LinkTraffic
from oddlot.core.membership import Membership
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.engines.mesh.compute import ComputeThread
from oddlot.engines.mesh.messages import ModelMessage, PeerMessage, Tensors
from oddlot.engines.mesh.network_faults import NetworkFaults
from oddlot.engines.mesh.transport import Sent, Transport

LONGEST_WAIT_SECONDS = 0.2
"""Longest wait of a mailbox, so that a peer sees signals and time that passes."""


class ProcessMailbox:
    """Messages of the other peers and of the own computation, on the clock that all peers of a run share."""

    def __init__(self, incoming: "queue.SimpleQueue[Any]", began: float) -> None:
        self.incoming, self.began = incoming, began

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    @property
    def is_spent(self) -> bool:
        """Never: other peers may always send something."""
        return False

    def next(self, until: float) -> Any:
        """Return the next message, after a short time None. Raise the error of the job's code."""
        wait = min(max(until - self.now, 0.0), LONGEST_WAIT_SECONDS)
        try:
            item = self.incoming.get(timeout=wait) if wait else self.incoming.get_nowait()
        except queue.Empty:
            return None
        if isinstance(item, Sent):
            item.release()
            return None
        if isinstance(item, OddlotError):
            raise item
        return item


class ProcessPort:
    """Sends to other peers over TCP, and computes in a thread."""

    def __init__(self, transport: Transport, compute: ComputeThread) -> None:
        self.transport, self.compute = transport, compute
        self.membership: Membership | None = None
        self.addresses: dict[NodeId, str] = {}
        """Addresses of peers that are not members yet."""
        self.disturbance = NetworkFaults()
        self.is_hung = False
        """Whether its computation hangs, so that its process must end."""

    def send(self, peer: NodeId, message: PeerMessage, tensors: Tensors | None = None) -> None:
        """Send a message to a peer, unless an injected fault drops it."""
        if isinstance(message, ModelMessage) and tensors is not None:
            tensors = self.disturbance.disturbed(tensors, lambda late: self._send(peer, message, late))
            if tensors is None:
                return
        self._send(peer, message, tensors)

    def _send(self, peer: NodeId, message: PeerMessage, tensors: Tensors | None) -> None:
        if self.disturbance.is_cut(peer):
            if tensors is not None:
                tensors.release()
            return
        member = self.membership.members.get(peer) if self.membership else None
        address = self.addresses.get(peer, "") if member is None else member.address
        if address:
            self.transport.send(peer, address, message, tensors)
        elif tensors is not None:
            tensors.release()

    def traffic(self) -> Iterable[LinkTraffic]:
        """Return the bytes sent to each peer so far."""
        return [
            LinkTraffic(peer, dict(sent.by_message), sent.by_system or None)
            for peer, sent in self.transport.sent_bytes().items()
        ]

    def know(self, peer: NodeId, address: str) -> None:
        """Note the address of a peer that is not a member yet."""
        self.addresses[peer] = address

    def address_of(self, peer: NodeId) -> str:
        """Return the address of a peer from which a message came."""
        return self.transport.addresses.get(peer, "")

    def start(self, task: Task, weights: Any) -> None:
        """Compute a task."""
        self.compute.start(task, weights)

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Stop a task at its next minibatch."""
        self.compute.abort(task)

    def evict(self, node: NodeId) -> None:
        """Note that the computation hangs: the process must end, because a thread cannot be ended."""
        self.is_hung = True

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """Stop a task at its next minibatch."""
        self.compute.abort(task)

    def evaluate(self, version: int, weights: Any) -> None:
        """Evaluate weights after the present task."""
        self.compute.evaluate(version, weights)

    def loaded(self) -> Iterable[TaskId]:
        """Return no task: a version is held until its task has ended."""
        return ()
