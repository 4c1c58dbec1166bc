"""A peer before it joins: it asks one living peer after the other for weights and optimizer state."""

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite
from typing import TypeGuard

from torch import Tensor

from oddlot.core.peers import IncludedModel
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Message
from oddlot.engines.mesh.messages import FromPeer, State, StateRequest, Tensors
from oddlot.engines.mesh.peer import PeerPort
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.update_gates import norm_of

REPLY_SECONDS, LONGEST_SECONDS = 10.0, 120.0
"""Seconds until another peer is asked, and until a newcomer without a reply gives up."""


class Newcomer:
    """Waits for the state of a peer. `joined` takes over its weights and optimizer state.

    What came before is passed on afterwards.
    """

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
        """Whether there is no peer that it could join."""
        self.ring(now)

    @property
    def alarm(self) -> float:
        """Return the time at which `ring` is due."""
        return inf if self.is_alone else self.asked_at + REPLY_SECONDS

    def ring(self, now: float) -> None:
        """Ask the next peer, or give up."""
        self.is_alone = not self.known or now >= self.gives_up_at
        if now >= self.alarm and self.known:
            self.asked_at = now
            self.known.append(self.known.pop(0))
            self.port.send(self.known[-1], StateRequest(self.address))

    def gone(self, peer: NodeId, _: float) -> None:
        """Note that the process of a peer has ended. Ask another one if it was asked."""
        if peer in self.known:
            if peer == self.known[-1]:
                self.asked_at = -inf
            self.known.remove(peer)
            self.is_alone = not self.known

    def receive(self, message: FromPeer | Message, now: float) -> None:
        """Take over the state of a peer, or keep the message."""
        if not isinstance(message, FromPeer):
            self.waiting.append(message)
        elif isinstance(message.message, State) and _is_sound(message.tensors):
            source, tensors = IncludedModel(message.sender, message.message.records), message.tensors
            self.joined(source, tensors.weights, tensors.optimizer)
            message.release()
        else:
            message.release()


def _is_sound(tensors: Tensors | None) -> TypeGuard[Tensors]:
    """Whether there are weights, with finite numbers."""
    return tensors is not None and isfinite(norm_of(tensors.weights))
