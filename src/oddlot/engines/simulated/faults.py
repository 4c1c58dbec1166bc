"""Injects faults into simulated workers."""

from oddlot.core.tasks import NodeId
from oddlot.engines.simulated.engine import Simulator


class SimulatedFaults:
    """`FaultInjection` for simulated workers."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator, self.events = simulator, simulator.events

    def kill(self, node: NodeId) -> None:
        """Lose the machine now. It returns as after a lifetime."""
        self.events.at(self.events.now, lambda: self.simulator.lose(node))

    def leave(self, node: NodeId) -> None:
        """Give the worker notice that its machine is reclaimed."""
        self.events.at(self.events.now, lambda: self.simulator.notice(node))

    def slow(self, node: NodeId, factor: float) -> None:
        """Slow the worker down, in the present task too."""
        worker = self.simulator.workers.get(node)
        if worker is not None:
            worker.slow(factor)

    def freeze(self, node: NodeId) -> None:
        """Stop the worker where it is."""
        worker = self.simulator.workers.get(node)
        if worker is not None and worker.frozen_at is None:
            worker.freeze()

    def thaw(self, node: NodeId) -> None:
        """Let a frozen worker continue."""
        worker = self.simulator.workers.get(node)
        if worker is None or worker.frozen_at is None:
            return
        worker.thaw(worker.frozen_at)
        if worker.has_pending_notice:
            self.leave(node)

    def bar(self, machine: str, barred: bool) -> None:
        """Make a machine unavailable or available again; one that is starting is cancelled."""
        lifecycle = self.simulator.lifecycle
        if not barred:
            self.events.at(self.events.now, lambda: lifecycle.unbar(machine))
        elif (message := lifecycle.bar(machine)) is not None:
            self.events.at(self.events.now, lambda: message)
