"""Distributed PyTorch training on unreliable machines.

    run = oddlot.fit(job, oddlot.Synchronous(), engine=oddlot.Local(workers=4), until="accuracy>=0.98")

Names are imported on first use: `import oddlot` alone loads neither PyTorch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oddlot import codecs, commands, events, faults, lr_schedules, machines, sparse, strategies, testing
    from oddlot.config.faults_file import read_chaos
    from oddlot.config.fleet_file import read_fleet
    from oddlot.core.errors import CheckpointError, JobError, OddlotError, UsageError
    from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer
    from oddlot.core.strategy import Strategy
    from oddlot.engines.local.config import Local
    from oddlot.engines.ray.config import Ray
    from oddlot.engines.simulated.config import Simulated
    from oddlot.history.replay import replay
    from oddlot.machines.machine import Machine
    from oddlot.planner.estimate import estimate
    from oddlot.run.fit import Interrupted, fit
    from oddlot.run.result import Run
    from oddlot.run.user_observers import StopRun
    from oddlot.strategies import (
        VCASGD,
        AdaptiveGossip,
        AdaptiveK,
        AdaptiveLoad,
        Asynchronous,
        BackupTasks,
        Deadline,
        Downpour,
        ElasticAveraging,
        EventGrad,
        FastestK,
        FederatedAveraging,
        Gossip,
        LocalSGD,
        ProportionalLoad,
        Quorum,
        Synchronous,
    )
    from oddlot.train.job import Job, accuracy
    from oddlot.train.sharded_data import Shards

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "VCASGD",
    "Adam",
    "AdamW",
    "AdaptiveGossip",
    "AdaptiveK",
    "AdaptiveLoad",
    "Asynchronous",
    "BackupTasks",
    "CheckpointError",
    "Deadline",
    "Downpour",
    "ElasticAveraging",
    "EventGrad",
    "FastestK",
    "FederatedAveraging",
    "Gossip",
    "Interrupted",
    "Job",
    "JobError",
    "Local",
    "LocalSGD",
    "Machine",
    "OddlotError",
    "Optimizer",
    "ProportionalLoad",
    "Quorum",
    "Ray",
    "Run",
    "Shards",
    "Simulated",
    "StopRun",
    "Strategy",
    "Synchronous",
    "UsageError",
    "__version__",
    "accuracy",
    "codecs",
    "commands",
    "estimate",
    "events",
    "faults",
    "fit",
    "lr_schedules",
    "machines",
    "read_chaos",
    "read_fleet",
    "replay",
    "sparse",
    "strategies",
    "testing",
]

_HOMES = {
    "run.fit": "Interrupted fit",
    "planner.estimate": "estimate",
    "core.errors": "CheckpointError JobError OddlotError UsageError",
    "core.optimizers": "SGD Adam AdamW Optimizer",
    "core.strategy": "Strategy",
    "engines.local.config": "Local",
    "engines.ray.config": "Ray",
    "engines.simulated.config": "Simulated",
    "machines.machine": "Machine",
    "config.faults_file": "read_chaos",
    "config.fleet_file": "read_fleet",
    "history.replay": "replay",
    "run.result": "Run",
    "strategies": "VCASGD AdaptiveGossip AdaptiveK AdaptiveLoad Asynchronous BackupTasks Deadline Downpour "
    "ElasticAveraging EventGrad FastestK FederatedAveraging Gossip LocalSGD ProportionalLoad Quorum Synchronous",
    "train.job": "Job accuracy",
    "train.sharded_data": "Shards",
    "run.user_observers": "StopRun",
}
_SUBPACKAGES = (
    "codecs",
    "commands",
    "events",
    "faults",
    "lr_schedules",
    "machines",
    "sparse",
    "strategies",
    "testing",
)
"""Public submodules, imported on first use."""
_HOME = {name: f"oddlot.{home}" for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return import_module(f"oddlot.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'oddlot' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
