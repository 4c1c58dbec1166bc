"""Faults that last: which of several counts on a worker, and until when."""

from collections import defaultdict

from oddlot.core.tasks import NodeId
from oddlot.engines.base import FaultInjection


class LastingFaults:
    """Freezes and slows workers. Of several faults of a kind the strongest counts while it lasts."""

    def __init__(self, faults: FaultInjection) -> None:
        self.faults = faults
        self.active: defaultdict[tuple[str, NodeId], list[tuple[float, float]]] = defaultdict(list)
        """The ends and factors of the faults of a kind on a worker."""

    def add(self, kind: str, node: NodeId, until: float, factor: float) -> None:
        """Add a fault, and drop those that end sooner and are no stronger."""
        others = (one for one in self.active[kind, node] if one[0] > until or one[1] > factor)
        self.active[kind, node] = [*others, (until, factor)]

    def apply(self, kind: str, node: NodeId, now: float) -> None:
        """Inject the strongest fault that lasts now, or end the last one."""
        active = [one for one in self.active[kind, node] if one[0] > now]
        self.active[kind, node] = active
        if kind == "slow":
            self.faults.slow(node, max((factor for _, factor in active), default=0.0))
        elif active:
            self.faults.freeze(node)
        else:
            self.faults.thaw(node)
