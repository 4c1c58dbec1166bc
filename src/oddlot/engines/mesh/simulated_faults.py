"""Injection of faults into a simulated mesh."""

from collections.abc import Callable, Collection

from oddlot.core.events import Struck
from oddlot.core.tasks import NodeId
from oddlot.engines.mesh.simulated import Envelope, SimulatedMesh


class SimulatedMeshFaults:
    """Faults of simulated peers and their network. `note` writes one into the log of a peer."""

    def __init__(self, mesh: SimulatedMesh, note: Callable[[Struck], None]) -> None:
        self.mesh, self.note = mesh, note

    def kill(self, node: NodeId) -> None:
        """Lose the machine of a peer now."""
        mesh = self.mesh

        def lose() -> Envelope | None:
            message = mesh.lose(node)
            return Envelope(node, message) if message is not None else None

        mesh.events.at(mesh.now, lose)

    def leave(self, node: NodeId) -> None:
        """Let a peer leave, and lose its machine."""
        self.mesh.notice(node)
        self.kill(node)

    def slow(self, node: NodeId, factor: float) -> None:
        """Slow a peer down, in its present task too."""
        if (there := self.mesh.peers.get(node)) is not None:
            there.worker.slow(factor)

    def freeze(self, node: NodeId) -> None:
        """Stop a peer where it is."""
        self.mesh.freeze(node)

    def thaw(self, node: NodeId) -> None:
        """Let a frozen peer continue."""
        self.mesh.thaw(node)

    def bar(self, machine: str, barred: bool) -> None:
        """Do nothing: a mesh has no injected capacity."""

    def disturb(self, node: NodeId, kind: str, seconds: float) -> None:
        """Delay, drop or corrupt the next model that a peer sends."""
        self.mesh.disturbances.setdefault(node, []).append((kind, seconds))

    def partition(self, side: Collection[NodeId]) -> None:
        """Cut these peers off from all others."""
        self.mesh.partition(side)
