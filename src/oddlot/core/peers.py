"""The peers of a mesh, as known to one of them, and the models that they exchange."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from oddlot.core.tasks import NodeId, machine_of

ModelId = str
"""Id of a sent model, such as `w2>17`: its sender and a running number. Never reused."""


class IncludedModel(NamedTuple):
    """A model that another model includes."""

    peer: NodeId
    """Peer with that model."""
    records: int
    """Number of records in the peer's log at that time."""


@dataclass(frozen=True, slots=True)
class PeerModel:
    """A model sent from one peer to another, without its tensors."""

    id: ModelId
    """Id of the model."""
    sender: NodeId
    """Name of the peer that sent the weights."""
    samples: int
    """Samples that the sender had trained on."""
    request_tag: int | None = None
    """Tag of the request that it replies to. None if it was pushed."""
    reply_tag: int | None = None
    """Tag of the model that the sender expects in return, or None if it expects no model."""
    loss: float | None = None
    """Running training loss of the sender. None if unknown."""
    weight: float = 1.0
    """Sum weight that the sender passed with the model, for push-sum averaging."""
    layers: tuple[int, ...] | None = None
    """Numbers of the trainable parameters that it has, in the layout's order. If None, all parameters."""


def layers_of_both(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the layers that at least one of two models has, or None for all layers."""
    return None if one is None or other is None else tuple(sorted({*one, *other}))


@dataclass(frozen=True, slots=True)
class LayerDrift:
    """The change of one trainable parameter since it was marked. Norms are Euclidean."""

    distance: float
    """Norm of the difference from the marked values."""
    marked_norm: float
    """Norm of the marked values."""
    norm: float
    """Norm of the values."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The change of the trainable parameters since they were marked (see the command `Mark`)."""

    distance: float
    """Euclidean norm of the difference from the marked weights."""
    marked_norm: float
    """Euclidean norm of the marked weights."""
    lr_factor: float = 1.0
    """Factor of the learning rate schedule in the last step."""
    layers: tuple[LayerDrift, ...] = ()
    """Drift of each trainable parameter, in the layout's order, if the step measured layers."""

    @property
    def relative(self) -> float:
        """Return the distance relative to the norm of the marked weights; 0 if both are 0."""
        return self.distance / self.marked_norm if self.marked_norm else float(self.distance > 0)


@dataclass
class Peers:
    """The peers that one peer knows, and the models in its inbox. Empty in runs with a hub."""

    me: NodeId = ""
    """Name of this peer. Empty: the run has a hub."""
    machines: list[str] = field(default_factory=list)
    """Machines of the mesh; their order numbers them in topologies."""
    living: dict[NodeId, None] = field(default_factory=dict)
    """The other peers that are not lost."""
    models: dict[ModelId, PeerModel] = field(default_factory=dict)
    """Received models that are neither merged nor dropped yet."""
    models_sent: int = 0
    sources: list[IncludedModel] = field(default_factory=list)
    """Peers with models that the initial weights include. Empty if the initial weights belong to a new model."""

    def __post_init__(self) -> None:
        self._ordered: Sequence[NodeId] = ()
        """Cached value of `in_order`. Empty: not computed."""

    def join(self, peer: NodeId) -> None:
        """Add a peer. Its machine is numbered after the others, if it is new."""
        self.living[peer] = None
        self._ordered = ()
        if machine_of(peer) not in self.machines:
            self.machines.append(machine_of(peer))

    def lose(self, peer: NodeId) -> None:
        """Remove a peer that is lost."""
        del self.living[peer]
        self._ordered = ()

    def in_order(self) -> Sequence[NodeId]:
        """Return the names of the active peers, this one included, by the number of their machine."""
        if not self._ordered:
            number = {machine: place for place, machine in enumerate(self.machines)}
            places = {peer: number.get(machine_of(peer), len(number)) for peer in (*self.living, self.me)}
            self._ordered = sorted(places, key=lambda peer: (places[peer], peer))
        return self._ordered

    @property
    def lead(self) -> NodeId:
        """Return the active peer with the lowest machine number."""
        return self.in_order()[0]

    def next_id(self) -> ModelId:
        """Return the id of the next model that this peer sends."""
        self.models_sent += 1
        return f"{self.me}>{self.models_sent}"
