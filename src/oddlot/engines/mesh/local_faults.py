"""Injection of faults into a mesh of local processes, by their launcher."""

import signal
from collections.abc import Collection
from contextlib import suppress

from oddlot.core.events import Struck
from oddlot.core.tasks import NodeId
from oddlot.engines.mesh.launcher import Launcher
from oddlot.engines.mesh.messages import Inject
from oddlot.engines.mesh.transport import Transport

LAUNCHER = "launcher"
"""Name with which the launcher speaks to peers."""


class LocalMeshFaults:
    """Sends signals to peers, and messages about faults of their network."""

    def __init__(self, launcher: Launcher, transport: Transport) -> None:
        self.launcher, self.transport = launcher, transport

    def note(self, struck: Struck) -> None:
        """Let a peer log a fault: one to which it does not happen, if there is one."""
        running = self.launcher.begun
        others = [node for node in running if node != struck.node] or running
        for node in others[:1]:
            self._send(node, Inject(struck.fault, struck.kind, struck.node, is_logged=True))

    def kill(self, node: NodeId) -> None:
        """Kill the process of a peer."""
        self.launcher.signal(node, signal.SIGKILL)

    def leave(self, node: NodeId) -> None:
        """Give a peer notice: it leaves the mesh."""
        self.launcher.signal(node, signal.SIGTERM)

    def slow(self, node: NodeId, factor: float) -> None:
        """Slow a peer down."""
        self._send(node, Inject("", "slow", node, factor=factor))

    def freeze(self, node: NodeId) -> None:
        """Stop a peer where it is."""
        self.launcher.signal(node, signal.SIGSTOP)

    def thaw(self, node: NodeId) -> None:
        """Let a frozen peer continue."""
        self.launcher.signal(node, signal.SIGCONT)

    def bar(self, machine: str, barred: bool) -> None:
        """Do nothing: a mesh has no injected capacity."""

    def disturb(self, node: NodeId, kind: str, seconds: float) -> None:
        """Delay, drop or corrupt the next model that a peer sends."""
        self._send(node, Inject("", kind, node, seconds=seconds))

    def partition(self, side: Collection[NodeId]) -> None:
        """Cut these peers off from all others."""
        for node in self.launcher.begun:
            self._send(node, Inject("", "partition", "", side=tuple(side)))

    def _send(self, node: NodeId, message: Inject) -> None:
        with suppress(KeyError):  # it has just ended
            self.transport.send(node, self.launcher.running[node].address, message)
