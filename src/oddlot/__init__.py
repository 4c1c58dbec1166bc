"""oddlot trains PyTorch models fast and cheaply on the machines one can get.

    run = oddlot.fit(job, oddlot.Synchronous(), on=oddlot.Local(workers=4), until="accuracy>=0.98")

Names are imported from where they live when they are first used: `import oddlot` alone loads neither PyTorch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oddlot.config.faults_file import read_chaos
    from oddlot.config.fleet_file import read_fleet
    from oddlot.core.errors import (
        CheckpointError,
        JobError,
        OddlotError,
        ProtocolError,
        UsageError,
    )
    from oddlot.core.optimizers import SGD, Adam, AdamW
    from oddlot.core.strategy import Strategy
    from oddlot.engines.local.config import Local
    from oddlot.engines.simulated.config import Simulated
    from oddlot.faults.plan import Chaos, Fault
    from oddlot.history.replay import replay
    from oddlot.machines.capacity import Alive, Always, Memoryless, Pools
    from oddlot.machines.delay_models import (
        Deterministic,
        Erlang,
        Exponential,
        Lognormal,
        ShiftedExponential,
        Trace,
    )
    from oddlot.machines.machine import Lifetime, Link, Machine
    from oddlot.machines.market import Fleet, Hub, Offer, Zone
    from oddlot.machines.time_series import Steps
    from oddlot.planner.estimate import EstimateInterrupted, estimate
    from oddlot.run.fit import Interrupted, fit
    from oddlot.run.result import Run
    from oddlot.run.user_observers import StopRun
    from oddlot.strategies import (
        VCASGD,
        AdaptiveK,
        AdaptiveLoad,
        Asynchronous,
        BackupTasks,
        Deadline,
        Downpour,
        ElasticAveraging,
        FastestK,
        FederatedAveraging,
        LocalSGD,
        ProportionalLoad,
        Quorum,
        Synchronous,
    )
    from oddlot.strategies.support.stage_switching import ByError, ByGradients, ByPlateau
    from oddlot.train.job import Job, accuracy
    from oddlot.train.lr_schedules import Cosine, Linear, MultiStep
    from oddlot.train.sharded_data import Shards
    from oddlot.wire.codec import Half, Plain
    from oddlot.wire.nonzero_blocks import NonZero

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "VCASGD",
    "Adam",
    "AdamW",
    "AdaptiveK",
    "AdaptiveLoad",
    "Alive",
    "Always",
    "Asynchronous",
    "BackupTasks",
    "ByError",
    "ByGradients",
    "ByPlateau",
    "Chaos",
    "CheckpointError",
    "Cosine",
    "Deadline",
    "Deterministic",
    "Downpour",
    "ElasticAveraging",
    "Erlang",
    "EstimateInterrupted",
    "Exponential",
    "FastestK",
    "Fault",
    "FederatedAveraging",
    "Fleet",
    "Half",
    "Hub",
    "Interrupted",
    "Job",
    "JobError",
    "Lifetime",
    "Linear",
    "Link",
    "Local",
    "LocalSGD",
    "Lognormal",
    "Machine",
    "Memoryless",
    "MultiStep",
    "NonZero",
    "OddlotError",
    "Offer",
    "Plain",
    "Pools",
    "ProportionalLoad",
    "ProtocolError",
    "Quorum",
    "Run",
    "Shards",
    "ShiftedExponential",
    "Simulated",
    "Steps",
    "StopRun",
    "Strategy",
    "Synchronous",
    "Trace",
    "UsageError",
    "Zone",
    "__version__",
    "accuracy",
    "estimate",
    "fit",
    "read_chaos",
    "read_fleet",
    "replay",
]

_HOMES = {
    "run.fit": "Interrupted fit",
    "planner.estimate": "EstimateInterrupted estimate",
    "core.errors": "CheckpointError JobError OddlotError ProtocolError UsageError",
    "core.optimizers": "SGD Adam AdamW",
    "core.strategy": "Strategy",
    "strategies.support.stage_switching": "ByError ByGradients ByPlateau",
    "engines.local.config": "Local",
    "engines.simulated.config": "Simulated",
    "faults.plan": "Chaos Fault",
    "machines.delay_models": "Deterministic Erlang Exponential Lognormal ShiftedExponential Trace",
    "machines.machine": "Lifetime Link Machine",
    "config.faults_file": "read_chaos",
    "config.fleet_file": "read_fleet",
    "machines.market": "Fleet Hub Offer Zone",
    "machines.time_series": "Steps",
    "machines.capacity": "Alive Always Memoryless Pools",
    "history.replay": "replay",
    "run.result": "Run",
    "strategies": "VCASGD AdaptiveK AdaptiveLoad Asynchronous BackupTasks Deadline Downpour ElasticAveraging FastestK "
    "FederatedAveraging LocalSGD ProportionalLoad Quorum Synchronous",
    "train.job": "Job accuracy",
    "train.sharded_data": "Shards",
    "train.lr_schedules": "Cosine Linear MultiStep",
    "run.user_observers": "StopRun",
    "wire.codec": "Half Plain",
    "wire.nonzero_blocks": "NonZero",
}
_HOME = {name: f"oddlot.{home}" for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'oddlot' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
