"""oddlot trains PyTorch models fast and cheaply on the machines one can get.

    run = oddlot.fit(job, oddlot.Synchronous(), on=oddlot.Local(workers=4), until="accuracy>=0.98")

Names are imported from where they live when they are first used: `import oddlot` alone loads neither PyTorch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oddlot.api import Interrupted, fit
    from oddlot.core.errors import (
        CheckpointError,
        JobError,
        OddlotError,
        ProtocolError,
        UsageError,
    )
    from oddlot.core.rules import SGD, Adam, AdamW
    from oddlot.core.strategy import Strategy
    from oddlot.core.switching import ByError, ByGradients, ByPlateau
    from oddlot.engines.on_local import Local
    from oddlot.engines.on_simulator import Simulated
    from oddlot.estimating import EstimateInterrupted, estimate
    from oddlot.machines.capacity import Alive, Always, Memoryless, Pools
    from oddlot.machines.chaos import Chaos, Fault
    from oddlot.machines.delays import (
        Deterministic,
        Erlang,
        Exponential,
        Lognormal,
        ShiftedExponential,
        Trace,
    )
    from oddlot.machines.machine import Lifetime, Link, Machine
    from oddlot.machines.market import Fleet, Hub, Offer, Zone
    from oddlot.machines.read_chaos import read_chaos
    from oddlot.machines.read_fleet import read_fleet
    from oddlot.machines.steps import Steps
    from oddlot.report.replay import replay
    from oddlot.run import Run
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
    from oddlot.train.job import Job, accuracy
    from oddlot.train.schedules import Cosine, Linear, MultiStep
    from oddlot.train.shards import Shards
    from oddlot.user_observers import StopRun
    from oddlot.wire.codec import Half, Plain
    from oddlot.wire.nonzero import NonZero

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
    "api": "Interrupted fit",
    "estimating": "EstimateInterrupted estimate",
    "core.errors": "CheckpointError JobError OddlotError ProtocolError UsageError",
    "core.rules": "SGD Adam AdamW",
    "core.strategy": "Strategy",
    "core.switching": "ByError ByGradients ByPlateau",
    "engines.on_local": "Local",
    "engines.on_simulator": "Simulated",
    "machines.chaos": "Chaos Fault",
    "machines.delays": "Deterministic Erlang Exponential Lognormal ShiftedExponential Trace",
    "machines.machine": "Lifetime Link Machine",
    "machines.read_chaos": "read_chaos",
    "machines.read_fleet": "read_fleet",
    "machines.market": "Fleet Hub Offer Zone",
    "machines.steps": "Steps",
    "machines.capacity": "Alive Always Memoryless Pools",
    "report.replay": "replay",
    "run": "Run",
    "strategies": "VCASGD AdaptiveK AdaptiveLoad Asynchronous BackupTasks Deadline Downpour ElasticAveraging FastestK "
    "FederatedAveraging LocalSGD ProportionalLoad Quorum Synchronous",
    "train.job": "Job accuracy",
    "train.shards": "Shards",
    "train.schedules": "Cosine Linear MultiStep",
    "user_observers": "StopRun",
    "wire.codec": "Half Plain",
    "wire.nonzero": "NonZero",
}
_HOME = {name: f"oddlot.{home}" for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'oddlot' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
