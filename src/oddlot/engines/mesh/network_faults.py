"""Injected network faults of a peer: a partition, and delay, loss or corruption of the next model."""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from oddlot.core.tasks import NodeId
from oddlot.engines.mesh.messages import Tensors
from oddlot.model.flat_buffer import FlatBuffer


@dataclass(frozen=True, slots=True)
class Inject:
    """A message of the launcher. It injects a fault into the receiver, or asks the receiver to log one."""

    fault: str
    """Name of the fault, as in `FaultInjected`."""
    kind: str
    """Kind of the fault."""
    node: NodeId
    """The affected peer."""
    seconds: float = 0.0
    factor: float = 0.0
    side: tuple[NodeId, ...] = ()
    """Peers on one side of a partition."""
    is_logged: bool = False
    """Whether the receiver only logs the fault."""


class NetworkFaults:
    """The current faults of one peer's messages."""

    def __init__(self) -> None:
        self.next: list[tuple[str, float]] = []
        """Kinds of faults of the next models that it sends, with the seconds of a delay."""
        self.cut_off: frozenset[NodeId] = frozenset()
        """Peers that it cannot reach."""

    def partition(self, me: NodeId, side: Collection[NodeId], others: Collection[NodeId]) -> None:
        """Separate this peer from the peers on the other side. An empty `side` ends the partition."""
        across = set(others) - set(side) if me in side else set(side)
        self.cut_off = frozenset(across if side else ())

    def is_cut(self, peer: NodeId) -> bool:
        """Return whether a message to or from a peer is lost."""
        return peer in self.cut_off

    def disturbed(self, tensors: Tensors, late: Callable[[Tensors], None]) -> Tensors | None:
        """Return the tensors to send now, or None if they are dropped, or sent by `late` after a delay."""
        if not self.next:
            return tensors
        kind, seconds = self.next.pop(0)
        if kind == "corrupt":
            return corrupted(tensors)
        if kind == "drop":
            tensors.release()
        else:
            threading.Timer(seconds, late, (tensors,)).start()
        return None


def corrupted(tensors: Tensors) -> Tensors:
    """Return tensors of NaN, and release the given tensors."""
    flat = FlatBuffer.empty(tensors.weights.layout, tensors.weights.memory.device)
    flat.copy_(tensors.weights)
    tensors.release()
    for _, view in flat.views():
        if view.is_floating_point():
            view.fill_(torch.nan)
    return Tensors(flat, lambda: None, tensors.layers, tensors.optimizer)
