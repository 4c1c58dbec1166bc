"""Preemption of the workers of any engine, following a capacity model or a recorded trace."""

from collections.abc import Sequence
from math import inf
from typing import Any

from oddlot.core.events import Evaluated, FaultInjected, Joined, Lost
from oddlot.core.support.random_streams import stream
from oddlot.core.tasks import NodeId, machine_of
from oddlot.engines.base import Engine, FaultInjection
from oddlot.engines.engine_wrapper import EngineWrapper
from oddlot.engines.host import Message
from oddlot.engines.simulated.stall_checks import stalled
from oddlot.machines.capacity import Capacity

NAME, KIND = "capacity", "preempt"
"""Name and kind of the fault in the log."""
TRACE = "chaos"
"""Name of the trace in an error."""


class PreemptionInjector(EngineWrapper):
    """Kills the workers of preempted machines. A machine gets no new worker until it is available again.

    Times are on the run's clock, so a resumed run continues in the capacity trace.
    """

    def __init__(
        self, engine: Engine, faults: FaultInjection, capacity: Capacity, names: Sequence[str], seed: int
    ) -> None:
        super().__init__(engine)
        self.faults = faults
        self.names = names
        self.moves = capacity.moves(len(names), stream(seed, NAME))
        self.move = next(self.moves, None)
        self.away = dict.fromkeys(names, True)
        self.nodes: dict[str, NodeId] = {}
        """The current worker of each machine that has a worker."""
        self.alive: set[NodeId] = set()
        """Workers that have joined and are not known to be lost."""
        self.evaluations = 0
        """Number of evaluations in progress."""
        self.pending: list[FaultInjected] = []
        """Faults that were not reported yet."""
        while self.move is not None and self.move[0] <= engine.now:
            self._turn()
        for name, away in self.away.items():
            faults.bar(name, away)

    @property
    def is_spent(self) -> bool:
        """Whether no further message is expected."""
        return self._is_over or self.engine.is_spent

    @property
    def _is_over(self) -> bool:
        """Whether the capacity has ended without a machine, and no message of the last machines is expected."""
        waits = self.pending or self.alive or self.evaluations
        return self.move is None and all(self.away.values()) and not waits

    def evaluate(self, version: int, weights: Any) -> None:
        """Evaluate these weights."""
        self.evaluations += 1
        self.engine.evaluate(version, weights)

    def next(self, until: float) -> Message | None:
        """Return the next message, or the event of a preemption. Raise JobError if no further message is expected."""
        if until == inf and self._is_over:
            raise stalled(self.now, 0, [TRACE])
        if self.pending:
            return self.pending.pop()
        while self.move is not None and self.move[0] <= self.now:
            name, away = self._turn()
            self.faults.bar(name, away)
            if away and (node := self.nodes.pop(name, "")):
                return self._take(node)
        due = self.move[0] if self.move else inf
        message = self.engine.next(min(until, due))
        match message:
            case Joined(node):
                self.alive.add(node)
                self._joined(node)
            case Lost(node):
                self.alive.discard(node)
                self._lost(node)
            case Evaluated():
                self.evaluations -= 1
        return message

    def _turn(self) -> tuple[str, bool]:
        """Apply the next move. Return its machine, and whether the machine is now away."""
        assert self.move is not None
        _, machine, comes = self.move
        self.move = next(self.moves, None)
        self.away[self.names[machine]] = not comes
        return self.names[machine], not comes

    def _joined(self, node: NodeId) -> None:
        """Register a worker. Preempt it immediately if its machine was preempted while it started."""
        name = machine_of(node)
        if self.away[name]:
            self.pending.append(self._take(node))
        else:
            self.nodes[name] = node

    def _take(self, node: NodeId) -> FaultInjected:
        """Kill the worker and return the event."""
        self.faults.kill(node)
        return FaultInjected(NAME, KIND, node)

    def _lost(self, node: NodeId) -> None:
        name = machine_of(node)
        if self.nodes.get(name) == node:
            del self.nodes[name]
