"""A peer before it joins: it requests weights and optimizer state from one running peer after the other."""

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from typing import TypeGuard

from torch import Tensor

from oddlot.core.peers import IncludedModel
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Message
from oddlot.engines.mesh.messages import FromPeer, State, StateRequest, Tensors
from oddlot.engines.mesh.peer_host import PeerPort
from oddlot.model.arrival import norm_of
from oddlot.model.flat_buffer import FlatBuffer

REPLY_SECONDS, LONGEST_SECONDS = 10.0, 120.0
"""Seconds until the next peer is asked, and until a newcomer without a reply gives up."""


class Newcomer:
    """A new peer. It requests the state of another peer, and passes the weights and optimizer state to `joined`."""

    def __init__(
        self,
        port: PeerPort,
        known: Sequence[NodeId],
        joined: Callable[[IncludedModel, FlatBuffer, Mapping[str, Tensor] | None], None],
        now: float,
        address: str,
    ) -> None:
        self.port, self.known, self.joined, self.address = port, list(known), joined, address
        self.waiting: list[Message] = []
        self.asked_at = -inf
        self.gives_up_at = now + LONGEST_SECONDS
        self.is_alone = False
        """Whether no peer is left to ask."""
        self.ring(now)

    @property
    def alarm(self) -> float:
        """Return the due time of `ring`; infinity for never."""
        return inf if self.is_alone else self.asked_at + REPLY_SECONDS

    def ring(self, now: float) -> None:
        """Ask the next peer, or give up."""
        self.is_alone = not self.known or now >= self.gives_up_at
        if now >= self.alarm and self.known:
            self.asked_at = now
            self.known.append(self.known.pop(0))
            self.port.send(self.known[-1], StateRequest(self.address))

    def gone(self, peer: NodeId, _: float) -> None:
        """Record that the process of a peer has ended. If it was asked last, `ring` is due to ask another peer."""
        if peer in self.known:
            if peer == self.known[-1]:
                self.asked_at = -inf
            self.known.remove(peer)
            self.is_alone = not self.known

    def receive(self, message: FromPeer | Message, now: float) -> None:
        """Start with the state of a peer. Drop other messages of peers, and keep messages of the computation."""
        if not isinstance(message, FromPeer):
            self.waiting.append(message)
        elif isinstance(message.message, State) and _is_sound(message.tensors):
            source, tensors = IncludedModel(message.sender, message.message.records), message.tensors
            self.joined(source, tensors.weights, tensors.optimizer)
            message.release()
        else:
            message.release()


def _is_sound(tensors: Tensors | None) -> TypeGuard[Tensors]:
    """Return whether there are weights, with finite numbers."""
    return tensors is not None and isfinite(norm_of(tensors.weights))
