"""Messages of the membership protocol. The protocol detects lost peers of a mesh."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from oddlot.core.tasks import NodeId

State = Literal["alive", "suspected", "lost"]


class PeerStatus(NamedTuple):
    """The known state of a peer.

    The news with the higher incarnation is newer. If they are equal, lost overrides suspected, and suspected overrides
    alive.
    """

    peer: NodeId
    address: str
    incarnation: int
    """Number that the peer increases to refute a suspicion."""
    state: State


@dataclass(frozen=True, slots=True)
class Ping:
    """A request for an `Ack` with the same number."""

    number: int
    news: tuple[PeerStatus, ...] = ()
    step_seconds: float = 0.0
    """Longest recent step of the sender, in seconds. 0: it has finished none."""


@dataclass(frozen=True, slots=True)
class Ack:
    """The reply to a ping."""

    number: int
    news: tuple[PeerStatus, ...] = ()
    step_seconds: float = 0.0
    """Longest recent step of the sender, in seconds. 0: it has finished none."""


@dataclass(frozen=True, slots=True)
class PingRequest:
    """A request to ping a third peer and forward its `Ack`."""

    number: int
    peer: NodeId
    news: tuple[PeerStatus, ...] = ()


MembershipMessage = Ping | Ack | PingRequest
