"""Fault injection into forked processes: signals, and messages that slow a worker down."""

import signal
from typing import Any

from oddlot.core.tasks import NodeId
from oddlot.engines.local.messages import Say, encode
from oddlot.engines.local.processes import Processes, WorkerProcesses


class SignalFaults:
    """Fault injection into forked processes by signals."""

    def __init__(self, processes: Processes[Any]) -> None:
        self.processes = processes

    def kill(self, node: NodeId) -> None:
        """Send SIGKILL to the process."""
        if worker := self.processes.running.get(node):
            worker.killed = True
        self.processes.signal(node, signal.SIGKILL)

    def freeze(self, node: NodeId) -> None:
        """Send SIGSTOP to the process."""
        self.processes.signal(node, signal.SIGSTOP)

    def thaw(self, node: NodeId) -> None:
        """Send SIGCONT to the process."""
        self.processes.signal(node, signal.SIGCONT)

    def leave(self, node: NodeId) -> None:
        """Send SIGTERM to the process."""
        self.processes.signal(node, signal.SIGTERM)


class LocalFaults(SignalFaults):
    """`FaultInjection` for worker processes."""

    processes: WorkerProcesses

    def slow(self, node: NodeId, factor: float) -> None:
        """Ask the worker to wait after each step, starting with its next minibatch."""
        if worker := self.processes.running.get(node):
            self.processes.channels.send(worker, encode(Say.SLOW, factor=factor))

    def bar(self, machine: str, barred: bool) -> None:
        """Set whether a machine's worker is barred: it is not replaced after it has ended."""
        self.processes.bar(self.processes.ids.names.index(machine), barred)
