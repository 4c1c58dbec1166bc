"""Messages between peers; `oddlot.core.membership` has further messages. Tensors are sent separately from a message."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oddlot.core.membership_messages import MembershipMessage
from oddlot.core.peers import PeerModel
from oddlot.core.records import HostState
from oddlot.core.tasks import NodeId
from oddlot.model.flat_buffer import FlatBuffer


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Request for the weights of a peer."""

    tag: int


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """The weights of a peer, sent to another peer for a merge."""

    model: PeerModel


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Request for the weights of a peer, for the sender's average number `number` of all peers."""

    number: int
    with_state: bool = False
    """Whether to send the host state too, for a checkpoint."""


@dataclass(frozen=True, slots=True)
class ModelForAverage:
    """The weights of a peer, for an average of all peers."""

    number: int
    records: int
    """Number of records in the sender's log."""
    host_state: HostState | None = None


@dataclass(frozen=True, slots=True)
class StateRequest:
    """Request for weights and optimizer state, to join a running mesh."""

    address: str
    """Address of the sender. It is not a member yet."""


@dataclass(frozen=True, slots=True)
class State:
    """Weights and optimizer state, for a peer that joins."""

    records: int
    """Number of records in the sender's log."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Notice that a peer has reached its goal. It still replies to other peers."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Request to every peer to finish now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """Notice that the model is saved, so that peers may end."""


PeerMessage = (
    MembershipMessage
    | ModelRequest
    | ModelMessage
    | SnapshotRequest
    | ModelForAverage
    | StateRequest
    | State
    | Finished
    | Stop
    | Done
)


def kind_of(message: PeerMessage) -> str:
    """Return the kind of a message in the counts of traffic: exchange, average, join or membership."""
    match message:
        case ModelMessage() | ModelRequest():
            return "exchange"
        case ModelForAverage() | SnapshotRequest():
            return "average"
        case State() | StateRequest():
            return "join"
        case _:
            return "membership"


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors of a message. They do not change until `release` is called."""

    weights: FlatBuffer
    release: Callable[[], None]
    layers: tuple[int, ...] | None = None
    """Numbers of the trainable parameters to send. If None, all tensors."""
    optimizer: dict[str, Any] | None = None
    """State of the optimizer. None if not sent."""


@dataclass(frozen=True, slots=True)
class FromPeer:
    """A received message."""

    sender: NodeId
    message: PeerMessage
    bytes: int = 0
    """Size on the network, in bytes."""
    tensors: Tensors | None = None
    problem: str = ""
    """Why its tensors cannot be read. Empty: they can be read."""

    def release(self) -> None:
        """Release its tensors, if there are any."""
        if self.tensors is not None:
            self.tensors.release()
