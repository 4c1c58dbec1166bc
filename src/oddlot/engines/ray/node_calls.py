"""Calls of small functions on nodes of a cluster."""

from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from oddlot.engines.ray import private_api
from oddlot.engines.ray.threads import in_thread


class NodeNews(NamedTuple):
    """The result of a call on a node, or an exception."""

    then: Callable[[Any], None]
    """Handles the result."""
    answer: Any


class NodeCalls:
    """Calls functions on nodes. The results are put into the hub's queue."""

    def __init__(self, news: SimpleQueue[Any], runtime_env: Mapping[str, Any] | None = None) -> None:
        self.news = news
        self._env = dict(runtime_env or {})
        """Runtime environment of workers, with their modules."""
        self._remote: dict[Any, Any] = {}
        """Remote functions, by function. Ray sends each to the cluster only once."""
        self._calls = set[Any]()
        """References to results that are pending."""

    def __call__(self, ray_node: str, then: Callable[[Any], None], function: Any, *arguments: Any) -> None:
        """Call a function on the node with this id of Ray's. `then` handles the result."""

        def request() -> None:
            there = NodeAffinitySchedulingStrategy(ray_node, soft=False)
            remote = self._remote.setdefault(function, ray.remote(function))
            options = {
                "num_cpus": 0,
                "scheduling_strategy": there,
                "max_retries": 0,
                "runtime_env": self._env,
            }
            call = remote.options(**options).remote(*arguments)
            self._calls.add(call)  # without a reference Ray drops the result
            private_api.on_completed(call, lambda answer: self._answered(call, then, answer))

        self._in_thread(request, then)

    def call_here(self, then: Callable[[Any], None], function: Callable[[], Any]) -> None:
        """Call a function in this process that may wait for the cluster's head. `then` handles the result."""
        self._in_thread(lambda: self.news.put(NodeNews(then, function())), then)

    def _in_thread(self, request: Callable[[], None], then: Callable[[Any], None]) -> None:
        """Call `request` in a thread, because Ray blocks while the cluster's head does not respond."""

        def run() -> None:
            try:
                request()
            except Exception as error:  # noqa: BLE001 - the connection may have ended
                self.news.put(NodeNews(then, error))

        in_thread(run)

    def _answered(self, call: Any, then: Callable[[Any], None], answer: Any) -> None:
        self._calls.discard(call)
        self.news.put(NodeNews(then, answer))
