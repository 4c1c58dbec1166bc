"""Nodes of a cluster that get no workers: drained, lost, left out, or short of memory."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

import ray

from oddlot.engines.ray import private_api
from oddlot.engines.ray.cluster import fits
from oddlot.engines.ray.handles import ActorHandle
from oddlot.engines.ray.node_calls import NodeCalls
from oddlot.engines.ray.node_functions import answer
from oddlot.engines.ray.settings import RaySettings

DRAIN_SECONDS = 1.0
"""Interval between queries for drained nodes, in seconds."""
ASK_SECONDS = 3.0
"""Time between two calls of a node that seems to be lost, in seconds."""
REST_SECONDS = 60.0
"""Seconds without new workers on a node after Ray killed a worker there to free memory."""
RECENT_SECONDS = 2.0
"""Largest age of a sign of life that shows that a node is running, in seconds."""
THERE = ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError
"""Errors that a running node reports."""
logger = logging.getLogger(__name__)


class ActorNode(NamedTuple):
    """The node of an actor."""

    node: str
    """Ray's id of the node. Empty: unknown."""
    address: str
    others: set[str]
    """Other nodes with the resources of a worker."""


class Suspect(NamedTuple):
    """A node that seems to be lost."""

    address: str
    since: float


class NodeWatch:
    """Tracks the nodes that must not get workers, and the nodes that workers must leave.

    Ray needs up to a minute to detect the loss of a node, and would start workers on it until then. A node that seems
    to be lost is used again once it responds to a call. Nodes have Ray's ids. `hub_node` never counts as lost.
    """

    def __init__(
        self, hub_node: str, settings: RaySettings, clock: Callable[[], float], call: NodeCalls
    ) -> None:
        self.hub_node, self._settings, self.clock, self._call = hub_node, settings, clock, call
        self.draining: Mapping[str, float] = {}
        self.suspects: dict[str, Suspect] = {}
        self.left_out: set[str] = set()
        """Nodes that cannot run workers."""
        self.resting: dict[str, float] = {}
        """Nodes that were running out of memory, with the time when they may get workers again."""
        self._answered: dict[str, float] = {}
        """Time of the last reply of each node."""
        self._ask_at: dict[str, float] = {}
        """Time when a node may be called again, or infinity if it has not responded yet."""
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="oddlot draining nodes", daemon=True).start()

    @property
    def avoided(self) -> set[str]:
        """Return the nodes that must not get workers."""
        return self.suspects.keys() | self.left_out | self.resting.keys()

    def suspect(self, worker: ActorHandle) -> None:
        """Avoid the node of a worker until it responds."""
        if worker.started is not None and worker.started.ray_node != self.hub_node:
            self.suspects[worker.started.ray_node] = Suspect(worker.started.address, self.clock())

    def rest(self, worker: ActorHandle) -> None:
        """Avoid the node of a worker for `REST_SECONDS`."""
        if worker.started is not None:
            self.resting[worker.started.ray_node] = self.clock() + REST_SECONDS

    def rested_at(self, node: str) -> float:
        """Return the time when a node may get workers again after a shortage of memory."""
        return self.resting.get(node, -inf)

    def is_there(self, worker: ActorHandle, others: Iterable[ActorHandle] = ()) -> bool:
        """Return whether the node of a silent worker, or one of `others` on it, has given a later sign of life."""
        if worker.started is None or worker.heard is None or worker.started.ray_node == self.hub_node:
            return True
        node, recent = worker.started.ray_node, self.clock() - RECENT_SECONDS
        there = [one for one in others if one is not worker and one.is_on(node)]
        return self._answered.get(node, -inf) > worker.heard or any(
            one.heard is not None and one.heard > recent for one in there
        )

    def ask(self, node: str) -> None:
        """Check whether a node responds, unless it was called just now or a call is open."""
        if self.clock() >= self._ask_at.get(node, -inf):
            self._ask_at[node] = inf
            self.call(node, lambda _: None, answer)

    def call(self, node: str, then: Callable[[Any], None], function: Any, *arguments: Any) -> None:
        """Call a function on a node. `then` handles the result or an exception."""

        def answered(value: Any) -> None:
            self._ask_at[node] = self.clock() + ASK_SECONDS
            if isinstance(value, ray.exceptions.TaskUnschedulableError):
                self.suspects.pop(node, None)  # Ray has detected the loss, and starts no workers there
            elif not isinstance(value, BaseException) or isinstance(value, THERE):
                self._answered[node] = self.clock()
            then(value)

        self._call(node, answered, function, *arguments)

    def forgive(self) -> bool:
        """Use nodes again that have responded or rested, and call the others. Return whether any is used again."""
        rested = [node for node, until in self.resting.items() if self.clock() >= until]
        for node in rested:
            del self.resting[node]
        back = [node for node, one in self.suspects.items() if self._answered.get(node, -inf) > one.since]
        for node in back:
            logger.warning("the node %s answers again, and gets workers", self.suspects.pop(node).address)
        for node in self.suspects:
            self.ask(node)
        return bool(back or rested)

    def find(self, actor: Any, then: Callable[[ActorNode | BaseException], None]) -> None:
        """Look up the node of an actor, running or ended. `then` handles the node, or an exception."""

        def look() -> ActorNode:
            node, address = private_api.node_of(actor)
            alive = (one for one in ray.nodes() if one["Alive"] and fits(self._settings, one["Resources"]))
            return ActorNode(node, address, {one["NodeID"] for one in alive} - {node})

        self._call.call_here(then, look)

    def must_leave(self, worker: ActorHandle) -> bool:
        """Return whether the worker's node is drained."""
        return any(worker.is_on(node) for node in self.draining)

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()

    def _watch(self) -> None:
        """Query drained nodes at intervals, in a separate thread because the cluster's head may not respond."""
        while not self._ended.wait(DRAIN_SECONDS):
            with suppress(Exception):  # the next query may succeed
                self.draining = private_api.draining_nodes()
