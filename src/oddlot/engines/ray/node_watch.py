"""Nodes of a cluster that are drained, or seem to be lost."""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from oddlot.engines.ray import internals
from oddlot.engines.ray.handles import ActorHandle

DRAIN_SECONDS = 1.0
"""Interval at which the cluster is asked for nodes that are drained, in seconds."""
SUSPECT_SECONDS = 90.0
"""Seconds after which a node that seemed to be lost gets workers again, unless Ray has noticed a loss."""
RECENT_SECONDS = 2.0
"""Age of a sign of life that shows that a node is there, in seconds."""


class NodeWatch:
    """The nodes on which no worker must start, and those whose workers must leave.

    Ray needs up to a minute to notice the loss of a node, and would start workers on it until then. Nodes have Ray's
    ids. `hub_node` is never suspected.
    """

    def __init__(self, hub_node: str, clock: Callable[[], float]) -> None:
        self.hub_node, self.clock = hub_node, clock
        self.draining: Mapping[str, float] = {}
        self.suspects: dict[str, float] = {}
        """Nodes that seem to be lost, with the time since when."""
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="oddlot draining nodes", daemon=True).start()

    def suspect(self, worker: ActorHandle, others: Iterable[ActorHandle] = ()) -> None:
        """Avoid the node of a worker, unless one of the others there has just been heard."""
        if worker.started is None or worker.started.ray_node == self.hub_node:
            return
        node, recent = worker.started.ray_node, self.clock() - RECENT_SECONDS
        there = [one for one in others if one is not worker and one.is_on(node)]
        if not any(one.heard is not None and one.heard > recent for one in there):
            self.suspects.setdefault(node, self.clock())

    def forgive(self) -> bool:
        """Use nodes again that were suspected for long. Return whether there was one."""
        past = [node for node, since in self.suspects.items() if self.clock() - since > SUSPECT_SECONDS]
        for node in past:
            del self.suspects[node]
        return bool(past)

    def must_leave(self, worker: ActorHandle) -> bool:
        """Return whether the worker's node is drained."""
        return any(worker.is_on(node) for node in self.draining)

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()

    def _watch(self) -> None:
        """Ask for drained nodes now and then, in a thread of its own: the cluster's head may not answer."""
        while not self._ended.wait(DRAIN_SECONDS):
            with suppress(Exception):  # it is asked again
                self.draining = internals.draining_nodes()
