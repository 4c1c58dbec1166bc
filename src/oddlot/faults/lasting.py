"""Faults that last for some time, and their overlap on a worker."""

from collections import defaultdict

from oddlot.core.tasks import NodeId
from oddlot.engines.base import FaultInjection


class LastingFaults:
    """Freezes and slows workers. If several faults of a kind overlap, the strongest one applies."""

    def __init__(self, faults: FaultInjection) -> None:
        self.faults = faults
        self.active: defaultdict[tuple[str, NodeId], list[tuple[float, float]]] = defaultdict(list)
        """Ends and factors of the faults, by kind and worker."""

    def add(self, kind: str, node: NodeId, until: float, factor: float) -> None:
        """Add a fault, and remove faults that end no later and are no stronger."""
        others = (one for one in self.active[kind, node] if one[0] > until or one[1] > factor)
        self.active[kind, node] = [*others, (until, factor)]

    def apply(self, kind: str, node: NodeId, now: float) -> None:
        """Inject the strongest active fault, or end the fault if none is active."""
        active = [one for one in self.active[kind, node] if one[0] > now]
        self.active[kind, node] = active
        if kind == "slow":
            self.faults.slow(node, max((factor for _, factor in active), default=0.0))
        elif active:
            self.faults.freeze(node)
        else:
            self.faults.thaw(node)
