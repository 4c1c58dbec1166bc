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
"""Interval at which the cluster is asked for nodes that are drained, in seconds."""
ASK_SECONDS = 3.0
"""Time between two questions to a node that seems to be lost, in seconds."""
REST_SECONDS = 60.0
"""Seconds without new workers of a node on which Ray killed a worker for want of memory."""
RECENT_SECONDS = 2.0
"""Age of a sign of life that shows that a node is there, in seconds."""
THERE = ray.exceptions.RayTaskError, ray.exceptions.RuntimeEnvSetupError
"""Errors that a node reports, so that it is there."""
logger = logging.getLogger(__name__)


class ActorNode(NamedTuple):
    """The node of an actor."""

    node: str
    """Ray's id of it. Empty: unknown."""
    address: str
    others: set[str]
    """Other nodes with the resources of a worker."""


class Suspect(NamedTuple):
    """A node that seems to be lost."""

    address: str
    since: float


class NodeWatch:
    """The nodes on which no worker must start, and those whose workers must leave.

    Ray needs up to a minute to notice the loss of a node, and would start workers on it until then. A node that seems
    to be lost is used again once it answers a call. Nodes have Ray's ids. `hub_node` is never suspected.
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
        """Nodes that were running out of memory, with the time from which they may get workers again."""
        self._answered: dict[str, float] = {}
        """Time of the last answer of each node."""
        self._ask_at: dict[str, float] = {}
        """Time from which a node may be asked again. Infinity: it has not answered yet."""
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="oddlot draining nodes", daemon=True).start()

    @property
    def avoided(self) -> set[str]:
        """Return the nodes on which no worker must start."""
        return self.suspects.keys() | self.left_out | self.resting.keys()

    def suspect(self, worker: ActorHandle) -> None:
        """Avoid the node of a worker until it answers."""
        if worker.started is not None and worker.started.ray_node != self.hub_node:
            self.suspects[worker.started.ray_node] = Suspect(worker.started.address, self.clock())

    def rest(self, worker: ActorHandle) -> None:
        """Avoid the node of a worker for a while."""
        if worker.started is not None:
            self.resting[worker.started.ray_node] = self.clock() + REST_SECONDS

    def rested_at(self, node: str) -> float:
        """Return the time from which a node may get workers again after a shortage of memory."""
        return self.resting.get(node, -inf)

    def is_there(self, worker: ActorHandle, others: Iterable[ActorHandle] = ()) -> bool:
        """Return whether the node of a silent worker has given a sign of life since the worker's last one."""
        if worker.started is None or worker.heard is None or worker.started.ray_node == self.hub_node:
            return True
        node, recent = worker.started.ray_node, self.clock() - RECENT_SECONDS
        there = [one for one in others if one is not worker and one.is_on(node)]
        return self._answered.get(node, -inf) > worker.heard or any(
            one.heard is not None and one.heard > recent for one in there
        )

    def ask(self, node: str) -> None:
        """Ask a node for an answer, unless it was asked just now or has not answered yet."""
        if self.clock() >= self._ask_at.get(node, -inf):
            self._ask_at[node] = inf
            self.call(node, lambda _: None, answer)

    def call(self, node: str, then: Callable[[Any], None], function: Any, *arguments: Any) -> None:
        """Call a function on a node. `then(answer)` handles the answer, which may be an exception."""

        def answered(value: Any) -> None:
            self._ask_at[node] = self.clock() + ASK_SECONDS
            if isinstance(value, ray.exceptions.TaskUnschedulableError):
                self.suspects.pop(node, None)  # Ray has noticed the loss, and starts no workers there
            elif not isinstance(value, BaseException) or isinstance(value, THERE):
                self._answered[node] = self.clock()
            then(value)

        self._call(node, answered, function, *arguments)

    def forgive(self) -> bool:
        """Use nodes again that have answered or rested, and ask the others. Return whether there was one."""
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
        """Ask the cluster for the node of an actor, which may have ended."""

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
        """Ask for drained nodes now and then, in a thread of its own: the cluster's head may not answer."""
        while not self._ended.wait(DRAIN_SECONDS):
            with suppress(Exception):  # it is asked again
                self.draining = private_api.draining_nodes()
