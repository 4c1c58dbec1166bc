"""Evaluation on a Ray cluster: in an actor on the hub's node."""

from functools import partial
from typing import Any

from oddlot.core.events import Evaluated
from oddlot.core.user_warnings import warn
from oddlot.engines.node_ids import EVALUATOR
from oddlot.engines.ray.actor import Failure
from oddlot.engines.ray.actors import Actors
from oddlot.engines.ray.handles import ActorHandle, Published
from oddlot.engines.respawn import EVALUATOR_INDEX


class Evaluator:
    """The evaluator, started at the first request at the latest. It is replaced if it ends or hangs."""

    def __init__(self, actors: Actors) -> None:
        self.actors, self.evaluations = actors, actors.evaluations
        actors.evaluator_ready = self._ask_all

    def evaluate(self, version: int, published: Published) -> None:
        """Evaluate these weights."""
        self.evaluations.requested[version] = published
        worker = self.actors.running.get(EVALUATOR)
        if worker is None:
            self.actors.spawn(EVALUATOR_INDEX)
        elif worker.ready:
            self._ask(worker, version)

    def check(self) -> None:
        """Kill the evaluator if it hangs."""
        worker = self.actors.running.get(EVALUATOR)
        if worker is not None and self.actors.clock() >= self.evaluations.deadline:
            warn("the evaluator does not respond and was killed. Another one takes over", "evaluator_hung")
            worker.taken_away = True
            self.actors.lose(worker)

    def _ask_all(self) -> None:
        """Request all pending evaluations."""
        for version in self.evaluations.requested:
            self._ask(self.actors.running[EVALUATOR], version)

    def _ask(self, worker: ActorHandle, version: int) -> None:
        weights = self.evaluations.requested[version].ref
        self.actors.call(worker, partial(self._evaluated, worker, version), worker.actor.evaluate, weights)
        self.evaluations.sent(self.actors.clock())

    def _evaluated(self, worker: ActorHandle, version: int, metrics: Any) -> None:
        if isinstance(metrics, Failure):
            self.actors.fail(worker, metrics)
        self.actors.policy.metrics_came()
        self.evaluations.done(version, self.actors.clock())
        self.actors.messages.append(Evaluated(version, metrics))
