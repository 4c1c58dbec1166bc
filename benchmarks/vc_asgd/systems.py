"""The systems that the bill compares, and their trainings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from benchmarks.report import Size
from benchmarks.vc_asgd.market import MACHINES
from benchmarks.vc_asgd.setting import SHARDS, a_job, proved, zone
from oddlot import (
    SGD,
    VCASGD,
    Downpour,
    ElasticAveraging,
    FederatedAveraging,
    Job,
    Run,
    Simulated,
    Strategy,
    Synchronous,
    fit,
)
from oddlot.machines import Always
from oddlot.machines.capacity import Capacity

DATASET, DEADLINE = "fashion_mnist", 1800.0
RATE = 0.06
"""Learning rate: the best of 0.03, 0.06 and 0.1 after 5 epochs, for federated averaging and for VC-ASGD."""
LIMIT = 5
"""Maximum epochs of a system, as a multiple of federated averaging's epochs. After that, it has missed the accuracy."""
AVERAGING, PAPER, NEWEST = "federated averaging", "VC-ASGD, newest=False", "VC-ASGD, newest"
"""PAPER: the paper's mode of VC-ASGD, the default when `saving_default_mode` was named."""
ONE, ELASTIC, DOWNPOUR = "one machine", "elastic averaging", "Downpour"
WHOLE = {ONE, ELASTIC, DOWNPOUR}
"""Strategies without shards."""


class System(NamedTuple):
    """A strategy on a number of machines."""

    strategy: str
    machines: int
    on_spot: bool

    def __str__(self) -> str:
        return f"{self.strategy}, {self.machines} {'on spot' if self.on_spot else 'on demand'}"


@dataclass(frozen=True)
class Stays:
    """Trainings on 8 machines on demand, and the accuracy that all systems must reach."""

    job: Job
    epochs: int
    averaging: Run
    newest: Run
    target: float


def strategies(job: Job) -> dict[str, Callable[[], Strategy]]:
    """Return a factory of each strategy, by name."""
    steps = max(1, len(job.train_data[0]) // SHARDS // job.batch_size)
    return {
        ONE: Synchronous,
        AVERAGING: lambda: FederatedAveraging(deadline_seconds=DEADLINE),
        PAPER: lambda: VCASGD(newest=False, deadline_seconds=DEADLINE),
        NEWEST: lambda: VCASGD(newest=True, deadline_seconds=DEADLINE),
        ELASTIC: lambda: ElasticAveraging(steps, deadline_seconds=DEADLINE),
        DOWNPOUR: lambda: Downpour(steps, SGD(lr=1 / MACHINES), deadline_seconds=DEADLINE),
    }


def train(job: Job, strategy: str, until: str, seed: int, capacity: Capacity, count: int) -> Run:
    """Train on machines of equal speed with changing capacity. Prices are applied later."""
    on = Simulated([zone(job, count, capacity)], seed=seed + 1)
    made, shards = strategies(job)[strategy](), 1 if strategy in WHOLE else SHARDS
    run = fit(job, made, on, until=until, shards=shards, seed=seed, evaluate_every="0.25 epochs")
    return proved(run, job)


@cache
def on_machines_that_stay(size: Size, seed: int) -> Stays:
    """Return the trainings on demand. The accuracy to reach is federated averaging's, less one point."""
    job = replace(a_job(DATASET, size.pick(100, None, None)), optimizer=SGD(lr=RATE, momentum=0.9))
    epochs = size.pick(1, 3, 12)
    averaging = train(job, AVERAGING, f"epochs>={epochs}", seed, Always(), MACHINES)
    target = (averaging.accuracy or 0.0) - 0.01
    newest = train(job, NEWEST, until(epochs, target), seed, Always(), MACHINES)
    return Stays(job, epochs, averaging, newest, target)


def until(epochs: int, target: float) -> str:
    """Return the goal of systems that stop once they have reached the accuracy."""
    return f"epochs>={LIMIT * epochs} or accuracy>={target}"
