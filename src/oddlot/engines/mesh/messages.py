"""What peers say to each other, besides `oddlot.core.membership`. Tensors travel beside a message."""

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
    """Asks for the weights of a peer."""

    tag: int


@dataclass(frozen=True, slots=True)
class ModelMessage:
    """Brings the weights of a peer."""

    model: PeerModel


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Asks for the weights for the average of all peers, number `number` of the asking one."""

    number: int
    with_state: bool = False
    """Whether to send the host state too, for a checkpoint."""


@dataclass(frozen=True, slots=True)
class ModelForAverage:
    """Brings the weights for an average of all peers."""

    number: int
    records: int
    """Records in the log of the sender."""
    host_state: HostState | None = None


@dataclass(frozen=True, slots=True)
class StateRequest:
    """Asks for weights and optimizer state, to join a mesh that trains already."""

    address: str
    """Address of the sender, who is not a member yet."""


@dataclass(frozen=True, slots=True)
class State:
    """Brings weights and optimizer state."""

    records: int
    """Records in the log of the sender."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Says that a peer has reached its goal. It still answers."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Asks every peer to finish now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """Says that the model is saved: peers may end."""


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
    """Return the kind of a message in the counts of traffic: exchanges, averages and other messages apart."""
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
    """Tensors to send: they do not change until `release` is called."""

    weights: FlatBuffer
    release: Callable[[], None]
    layers: tuple[int, ...] | None = None
    """Trainable parameters to send. None: all tensors."""
    optimizer: dict[str, Any] | None = None
    """State of the optimizer, if it is sent too."""


@dataclass(frozen=True, slots=True)
class FromPeer:
    """A message as it arrives."""

    sender: NodeId
    message: PeerMessage
    bytes: int = 0
    """Bytes that it took on the network."""
    tensors: Tensors | None = None
    problem: str = ""
    """Why its tensors cannot be read. Empty: they can."""

    def release(self) -> None:
        """Release its tensors, which are not needed any more."""
        if self.tensors is not None:
            self.tensors.release()
