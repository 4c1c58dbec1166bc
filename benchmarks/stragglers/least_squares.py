"""The paper's study: least squares with 50 workers and random times for each task.

Kas Hanna et al., "Adaptive Distributed SGD for Fast Convergence in the Presence of Stragglers" (ICASSP 2020), section
5. In the paper, each worker has its own rows, and uses all of them in each gradient (`Held`). If loads change, each
gradient has random rows (`Drawn`). Samples with fixed rows do not fit: each counts exactly once per epoch, so the
batches of an epoch are disjoint, and errors end below the paper's floors. Errors are distances to the least-squares
solution.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf, sqrt
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import oddlot
from benchmarks.report import Size
from oddlot import SGD, Job, Machine, Run, Simulated, Strategy
from oddlot.core.commands import Start, Step
from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.core.sample_spans import samples_in
from oddlot.data.batches import order
from oddlot.machines import Exponential, Link

WORKERS, FEATURES, ROWS, LOAD = 50, 100, 2_000, 40
"""LOAD: rows of a complete task, equal to the rows of a worker in the paper."""
DRAWN = 4_000_000
"""Rows of an epoch."""
EVERY = 20
"""Rounds between measures of the error."""


class Problem(NamedTuple):
    """Least squares with integer features from 1 to 10, true weights from 1 to 100, and noise of variance 1."""

    features: Tensor
    """[ROWS, FEATURES], float64."""
    targets: Tensor
    """[ROWS], float64."""
    best: Tensor
    """[FEATURES]: the least-squares solution."""
    curvature: Tensor
    """[FEATURES, FEATURES]: the Hessian of half the mean squared residual."""


@cache
def problem() -> Problem:
    """Return the problem of all runs. Their floors do not depend on it."""
    chance = np.random.default_rng(1)
    x = chance.integers(1, 11, (ROWS, FEATURES)).astype(np.float64)
    y = x @ chance.integers(1, 101, FEATURES) + chance.standard_normal(ROWS)
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    return Problem(*map(torch.from_numpy, (x, y, best, x.T @ x / ROWS)))


def floor(rate: float, k: int) -> float:
    """Return the final root mean square distance with the fastest k workers and `Held` rows, for noise of variance 1.

    The last factor corrects for k of n workers without replacement.
    """
    return sqrt(rate * FEATURES / (2 * k * LOAD) * (WORKERS - k) / (WORKERS - 1))


def a_of(rate: float) -> float:
    """Return the final loss above the minimum, with gradients of one row."""
    return rate * float(problem().curvature.trace()) / 4


class Drawn:
    """A dataset of random rows."""

    def __init__(self, seed: int, count: int = DRAWN) -> None:
        rows = np.random.default_rng(seed).integers(0, ROWS, count, dtype=np.uint16)
        self.rows = torch.from_numpy(rows.astype(np.int32))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([place])

    def __getitems__(self, places: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = self.rows[torch.as_tensor(places)]
        return problem().features[rows], problem().targets[rows]


class Held(Drawn):
    """A dataset with samples that are rows of the worker that computes them. The dataset observes the run.

    Two epochs in progress at once may share samples, on average less than one at each end of an epoch. One of the two
    tasks then has another worker's row.
    """

    def __init__(self, seed: int, count: int = DRAWN) -> None:
        super().__init__(seed, count)
        self.seed = seed

    def __call__(self, record: Record) -> None:
        """Observe a record. The samples of each new task become the rows of its worker, from the first row on."""
        for action in record.actions:
            if isinstance(action, Start):
                parts = [
                    order(self.seed, one.epoch, len(self))[one.start : one.stop] for one in action.task.spans
                ]
                places = torch.from_numpy(np.concatenate(parts))
                first = int(action.task.node.removeprefix("w")) * LOAD
                self.rows[places] = torch.arange(first, first + len(places), dtype=torch.int32)


@dataclass
class Counts:
    """A callback that counts the work of a run."""

    rounds: int = 0
    assigned: int = 0
    """Rows of tasks that were sent to workers."""
    used: int = 0
    """Rows of merged gradients."""
    uploads: int = 0
    path: list[tuple[float, int, int]] = field(default_factory=list)
    """Seconds, k and load of each round."""
    arrived: dict[str, int] = field(default_factory=dict)

    def __call__(self, record: Record) -> None:
        """Observe a record."""
        if isinstance(record.event, Arrived):
            self.uploads += 1
            self.arrived[record.event.update.id] = record.event.update.samples
        for action in record.actions:
            if isinstance(action, Start):
                self.assigned += samples_in(action.task.spans)
            elif isinstance(action, Step):
                rows = [self.arrived.pop(update) for update in action.shares]
                self.rounds += 1
                self.used += sum(rows)
                self.path.append((record.now, len(rows), max(rows)))


def fleet(load_seconds: float, communication_seconds: float) -> list[Machine]:
    """Return machines with exponential times and these means for a full task's computation and communication."""
    link = Link(latency_milliseconds=500 * communication_seconds, delay=Exponential())
    one = Machine("w", load_seconds / LOAD, Exponential(), link, stops_at_once=True)
    return [replace(one, name=f"w{number}") for number in range(WORKERS)]


def a_job(rate: float, start: Tensor, data: Drawn) -> Job:
    """Return a job that trains on the problem, from the weights `start`."""

    def model() -> nn.Module:
        net = nn.Linear(FEATURES, 1, bias=False).double()
        with torch.no_grad():
            net.weight.copy_(start[None])
        return net

    return Job(
        model,
        data,
        training_step=_half_squares,
        eval_data=(torch.eye(FEATURES, dtype=torch.float64), problem().best),
        predict=_weights,
        metrics={"error": _distance, "lately": Lately(), "excess": _excess},
        optimizer=SGD(lr=rate),
        batch_size=LOAD,
        eval_batch_size=FEATURES,
        collate=_as_it_is,
        device="cpu",
    )


def _half_squares(net: nn.Module, batch: Any) -> Tensor:
    features, targets = batch
    residuals: Tensor = net(features)[:, 0] - targets
    return 0.5 * (residuals**2).mean()


def _weights(net: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return the weights, as the predictions for unit vectors."""
    out: Tensor = net(batch[0])[:, 0]
    return out, batch[1]


def _distance(weights: Tensor, best: Tensor) -> float:
    return float((weights - best).norm())


class Lately:
    """A metric: the root mean square of the last ten distances. A single distance may be low by chance."""

    def __init__(self) -> None:
        self.squares: deque[float] = deque([inf] * 10, maxlen=10)

    def __call__(self, weights: Tensor, best: Tensor) -> float:
        self.squares.append(_distance(weights, best) ** 2)
        return min(1e9, sqrt(fmean(self.squares)))


def check_reached(run: Run, metric: str, goal: float) -> None:
    """Raise RuntimeError if the run did not reach the goal."""
    if not run.summary["metrics"][metric] <= 1.001 * goal:
        raise RuntimeError(f"{metric} {run.summary['metrics'][metric]} never came to {goal}: {run.ended}")


def _excess(weights: Tensor, best: Tensor) -> float:
    """Return half the mean squared residual, less its minimum."""
    off = weights - best
    return float(off @ problem().curvature @ off) / 2


def _as_it_is(batch: Any) -> Any:
    return batch


def trained(
    strategy: Strategy,
    machines: list[Machine],
    rate: float,
    start: Tensor,
    seed: int,
    until: str,
    data: type[Drawn] = Drawn,
    size: Size = Size.FULL,
) -> tuple[Run, Counts]:
    """Train from `start`, with data and times of this seed."""
    counts, rows = Counts(), data(seed, size.pick(DRAWN // 100, DRAWN, DRAWN))
    run = oddlot.fit(
        a_job(rate, start, rows),
        strategy,
        Simulated(machines, seed=seed),
        seed=seed,
        until=until,
        evaluate_every=f"{size.pick(1, EVERY, EVERY)} versions",
        callbacks=[rows, counts] if isinstance(rows, Held) else [counts],
    )
    return run, counts
