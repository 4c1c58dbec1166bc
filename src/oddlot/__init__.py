"""Distributed PyTorch training on unreliable machines.

    run = oddlot.fit(job, oddlot.Synchronous(), engine=oddlot.Local(workers=4), until="accuracy>=0.98")

Names are imported on first use: `import oddlot` alone loads neither PyTorch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from oddlot.core.version import __version__ as __version__

if TYPE_CHECKING:
    from oddlot import (
        callbacks as callbacks,
        codecs as codecs,
        commands as commands,
        events as events,
        faults as faults,
        lr_schedules as lr_schedules,
        machines as machines,
        merging as merging,
        sparse as sparse,
        strategies as strategies,
        testing as testing,
    )
    from oddlot.config.faults_file import read_chaos as read_chaos
    from oddlot.config.fleet_file import read_fleet as read_fleet
    from oddlot.core.optimizers import SGD as SGD, Adam as Adam, AdamW as AdamW, Optimizer as Optimizer
    from oddlot.core.strategy import Strategy as Strategy
    from oddlot.core.support.errors import (
        CheckpointError as CheckpointError,
        JobError as JobError,
        OddlotError as OddlotError,
        UsageError as UsageError,
    )
    from oddlot.data.shards import Shards as Shards
    from oddlot.engines.local.config import Local as Local
    from oddlot.engines.ray.config import Ray as Ray
    from oddlot.engines.simulated.config import Simulated as Simulated
    from oddlot.history.callback import Callback as Callback, StopRun as StopRun
    from oddlot.history.replay import replay as replay
    from oddlot.machines.machine import Machine as Machine
    from oddlot.planner.estimate import estimate as estimate
    from oddlot.planner.plan import Plan as Plan, PlanInterrupted as PlanInterrupted, plan as plan
    from oddlot.run.fit import Interrupted as Interrupted, fit as fit
    from oddlot.run.result import Run as Run
    from oddlot.run.saved_weights import load as load
    from oddlot.run.stages import fit_stages as fit_stages
    from oddlot.strategies.shipped import *
    from oddlot.train.batch_loss import model_loss as model_loss
    from oddlot.train.job import Job as Job, accuracy as accuracy
    from oddlot.train.stages import Stage as Stage

_HOMES = {
    "run.fit": "Interrupted fit",
    "planner.estimate": "estimate",
    "planner.plan": "Plan PlanInterrupted plan",
    "core.support.errors": "CheckpointError JobError OddlotError UsageError",
    "core.optimizers": "SGD Adam AdamW Optimizer",
    "core.strategy": "Strategy",
    "engines.local.config": "Local",
    "engines.ray.config": "Ray",
    "engines.simulated.config": "Simulated",
    "machines.machine": "Machine",
    "config.faults_file": "read_chaos",
    "config.fleet_file": "read_fleet",
    "history.callback": "Callback StopRun",
    "history.replay": "replay",
    "run.result": "Run",
    "run.saved_weights": "load",
    "run.stages": "fit_stages",
    "train.job": "Job accuracy",
    "train.batch_loss": "model_loss",
    "train.stages": "Stage",
    "data.shards": "Shards",
}
_SUBPACKAGES = (
    "callbacks",
    "codecs",
    "commands",
    "events",
    "faults",
    "lr_schedules",
    "machines",
    "merging",
    "sparse",
    "strategies",
    "testing",
)
"""Public submodules, imported on first use."""
_HOME = {name: f"oddlot.{home}" for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return import_module(f"oddlot.{name}")
    if name == "__all__":
        return sorted([*_HOME, *_SUBPACKAGES, *_strategies(), "__version__"])
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif not name.startswith("_") and name in (found := _strategies()):
        value = found[name]
    else:
        raise AttributeError(f"module 'oddlot' has no attribute {name!r}")
    globals()[name] = value
    return value


def _strategies() -> dict[str, Any]:
    """Return the strategies that come with oddlot, by class name."""
    shipped = import_module("oddlot.strategies.shipped")
    return {name: kind for name, kind in vars(shipped).items() if isinstance(kind, type)}


def __dir__() -> list[str]:
    return __getattr__("__all__")  # type: ignore[no-any-return]  # the list of names above
