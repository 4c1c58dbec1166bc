"""Fault injection into the workers of a Ray cluster."""

import signal
from typing import TYPE_CHECKING

from oddlot.core.tasks import NodeId

if TYPE_CHECKING:
    from oddlot.engines.ray.actors import Actors


class RayFaults:
    """Injects faults by signals to the workers' processes, on any machine."""

    def __init__(self, actors: "Actors") -> None:
        self.actors = actors

    def kill(self, node: NodeId) -> None:
        """Send SIGKILL to the worker."""
        if worker := self.actors.running.get(node):
            worker.killed = True
            self.actors.signal(worker, signal.SIGKILL)

    def freeze(self, node: NodeId) -> None:
        """Send SIGSTOP to the worker."""
        self._send(node, signal.SIGSTOP)

    def thaw(self, node: NodeId) -> None:
        """Send SIGCONT to the worker."""
        self._send(node, signal.SIGCONT)

    def leave(self, node: NodeId) -> None:
        """Send SIGTERM to the worker."""
        self._send(node, signal.SIGTERM)

    def slow(self, node: NodeId, factor: float) -> None:
        """Tell the worker, which waits from its next minibatch on."""
        self.actors.control(node, "slow", factor)

    def bar(self, machine: str, barred: bool) -> None:
        """Set whether a worker that ends is replaced only when this is over."""
        self.actors.bar(self.actors.ids.names.index(machine), barred)

    def _send(self, node: NodeId, number: signal.Signals) -> None:
        if worker := self.actors.running.get(node):
            self.actors.signal(worker, number)
