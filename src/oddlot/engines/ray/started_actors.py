"""Requests for actors, with their resources and allowed nodes."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy, NotIn

from oddlot.engines.processes.respawn import EVALUATOR_INDEX
from oddlot.engines.ray.settings import RaySettings
from oddlot.engines.ray.threads import in_thread
from oddlot.engines.ray.worker_actor import CONTROL, CONTROL_THREADS, TASK_THREADS, WorkerActor


class StartedActors:
    """Requests actors for workers. The first actors are requested before the run assigns ids to its workers."""

    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings
        self.hub_node: str = ray.get_runtime_context().get_node_id()
        remote = ray.remote(
            max_restarts=0,  # the ledger decides which samples are computed again
            max_task_retries=0,
            max_concurrency=TASK_THREADS,
            concurrency_groups={CONTROL: CONTROL_THREADS},
        )
        self._class = remote(WorkerActor)
        self._early = [self._request(settings.needs, name) for name in settings.names]

    def take(self, index: int, name: str, avoid: Collection[str] = ()) -> Any:
        """Return an actor for the worker `index`. The first call returns the actor that was requested early.

        `avoid` are Ray's ids of nodes to avoid.
        """
        if index == EVALUATOR_INDEX:
            return self._class.options(
                num_cpus=0,
                runtime_env=dict(self.settings.runtime_env or {}),
                scheduling_strategy=NodeAffinitySchedulingStrategy(self.hub_node, soft=False),
            ).remote(name)
        if self.settings.is_on_demand(index):
            return self._request(self.settings.on_demand_needs, name, avoid)
        actor, self._early[index] = self._early[index], None
        return actor or self._request(self.settings.needs, name, avoid)

    def close(self) -> None:
        """Kill the actors that were not taken."""
        for actor in filter(None, self._early):
            in_thread(partial(ray.kill, actor))

    def _request(self, needs: Mapping[str, float], name: str, avoid: Collection[str] = ()) -> Any:
        """Request an actor. It starts once the cluster has room for it, preferably not on the hub's node."""
        hard = {"ray.io/node-id": NotIn(*avoid)} if avoid else {}
        return self._class.options(
            num_cpus=needs["CPU"],
            num_gpus=needs["GPU"],
            resources={kind: amount for kind, amount in needs.items() if kind not in {"CPU", "GPU"}},
            runtime_env=dict(self.settings.runtime_env or {}),
            scheduling_strategy=NodeLabelSchedulingStrategy(
                hard, soft={"ray.io/node-id": NotIn(self.hub_node)}
            ),
        ).remote(name)
