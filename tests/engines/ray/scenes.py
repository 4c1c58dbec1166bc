"""Runs on a Ray cluster that a test drives message by message, with tasks of a known duration."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from oddlot import Asynchronous, Job, Ray
from oddlot.core.events import Joined, Lost
from oddlot.core.tasks import machine_of, worker_number
from oddlot.engines.ray.actor_pool import ActorPool
from oddlot.history.run_folder import RunFolder
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.run.training import prepared
from oddlot.testing.engine_check import DrivenRun, Slowly

SAMPLES, BATCH = 400, 4
LOST_AFTER_SECONDS = 2.0


def a_line() -> nn.Module:
    """Return a model with two parameters."""
    return nn.Linear(1, 1)


def slow_job(seconds: float = 0.05, **changes: Any) -> Job:
    """Return a job with 100 minibatches per epoch. Each takes `seconds`."""
    rows = torch.arange(SAMPLES, dtype=torch.float32).reshape(-1, 1) / SAMPLES
    given = {"training_step": Slowly(seconds), **changes}
    return Job(a_line, (rows, 2 * rows), batch_size=BATCH, device="cpu", **given)


def on_ray(workers: int | tuple[int, int] = 2, **settings: Any) -> Ray:
    """Return an engine with two workers per CPU and a short time until a worker counts as lost."""
    given = {"num_cpus": 0.5, "in_flight": 2, "lost_after_seconds": LOST_AFTER_SECONDS, **settings}
    return Ray(workers, **given)


class Scene(DrivenRun):
    """A run with access to its workers. It trains until `finish` is called."""

    def finish(self) -> None:
        """Train to the end of the current epoch, and check the final state."""
        ledger = self.host.conductor.ledger
        ledger.epochs = ledger.epoch + 1
        super().finish()

    @property
    def actors(self) -> ActorPool:
        """Return the hub's pool of actors."""
        actors: ActorPool = self.engine.actors  # type: ignore[attr-defined]  # it is a RayEngine
        return actors

    def work(self, updates: int = 6) -> None:
        """Train for `updates` more versions."""
        version = self.host.conductor.version + updates
        self.until(lambda: self.host.conductor.version >= version)

    def seconds_until_lost(self, node: str) -> float:
        """Train until the worker is lost. Return the seconds that this took."""
        began = time.monotonic()
        self.until(lambda: self.has(Lost, node))
        return time.monotonic() - began

    def is_back(self, lost: str) -> bool:
        """Return whether a later worker of its machine has joined."""
        joined = (record.event.node for record in self.records if isinstance(record.event, Joined))
        return any(
            machine_of(node) == machine_of(lost) and worker_number(node) > worker_number(lost)
            for node in joined
        )

    def on_node(self, ray_node: str) -> list[str]:
        """Return the workers on a node of the cluster that are ready."""
        there = (one for one in self.actors.running.values() if one.ready and not one.is_evaluator)
        return [one.node for one in there if one.started and one.started.ray_node == ray_node]


@contextmanager
def scene(job: Job, on: Ray, folder: RunFolder | None = None, **settings: Any) -> Iterator[Scene]:
    """Yield a run of the job. Its state is checked after every record."""
    given = {"until": "epochs>=1000", "epoch_barrier": True, **settings}
    with prepared(Recipe(job, Asynchronous(), on, RunConfig(**given)), folder) as training:
        yield Scene(training)
