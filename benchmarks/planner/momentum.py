"""The best momentum on least squares, measured with asynchronous groups and predicted by theorem 7."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from benchmarks.report import show
from oddlot import Asynchronous, Machine
from oddlot.machines import Exponential, Fleet
from oddlot.planner.run_shape import RunShape
from oddlot.planner.statistical_efficiency import best_momentum, theorem_7_rate, updates_needed
from oddlot.planner.timeline import Timeline
from oddlot.run.config import RunConfig

LR = 0.25
MOMENTA = tuple(round(-0.9 + 0.1 * number, 1) for number in range(19))
REDUCTION = 1e-4
"""Reduction of the distance to the optimum that is measured. The theorem is about many updates."""
MOST_UPDATES = 200
NEAR = 3
"""Steps of the grid that are measured on both sides of the prediction."""


@cache
def bases(groups: int, seed: int) -> list[int]:
    """Return the version that each update of a simulated run started from."""
    fleet = Fleet([Machine(f"m{number}", 1.0, Exponential()) for number in range(groups)])
    config = RunConfig.of({"seed": seed})
    job = RunShape(samples=10_000).job()
    timeline = Timeline.of(job, Asynchronous(damping=0), fleet, config)  # groups of one worker
    found = [timeline.merge(version).parts[0].task.version for version in range(1, MOST_UPDATES + 1)]
    timeline.close()
    return found


def distance(condition: float, momentum: float, runs: Sequence[Sequence[int]]) -> float:
    """Return the distance of the mean weights of several runs from the optimum, after all their updates.

    SGD with momentum starts at weights of 1 on the loss 0.5 * (w[0]**2 + w[1]**2 / condition). The gradient of an
    update is that of the version it started from.
    """
    curvatures = np.array([1.0, 1 / condition])
    total = np.zeros(2)
    for run in runs:
        weights, velocity = [np.ones(2)], np.zeros(2)
        for base in run:
            velocity = momentum * velocity + curvatures * weights[base]
            weights.append(weights[-1] - LR * velocity)
        total += weights[-1]
    return float(np.linalg.norm(total / len(runs)))


def differences(conditions: tuple[float, ...], groups: tuple[int, ...], seeds: int) -> list[float]:
    """Return the differences between the best measured and the best predicted momentum."""
    found, rows = [], []
    for condition in conditions:
        for count in groups:
            predicted, rate = best_momentum(LR, (1.0, 1 / condition), count, MOMENTA)
            updates = min(MOST_UPDATES, max(20, round(updates_needed(rate, REDUCTION))))
            at = MOMENTA.index(predicted)
            tried = MOMENTA[max(0, at - NEAR) : at + NEAR + 1]
            runs = [bases(count, seed)[:updates] for seed in range(1 if count == 1 else seeds)]
            far = {each: distance(condition, each, runs) for each in tried}
            measured = min(far, key=far.__getitem__)
            found.append(abs(measured - predicted))
            rates = [theorem_7_rate(LR, each, (1.0, 1 / condition), count) for each in (measured, 0.9)]
            costs = [updates_needed(each, REDUCTION) / updates_needed(rate, REDUCTION) for each in rates]
            rows.append(
                [
                    f"{condition:g}",
                    f"{count}",
                    f"{predicted:.1f}",
                    f"{measured:.1f}",
                    *(f"{cost:.2f}" for cost in costs),
                ]
            )
    show(
        f"best momentum at a learning rate of {LR}, {seeds} runs each",
        ["condition", "groups", "theorem 7", "measured", "updates by theorem 7", "... with 0.9"],
        rows,
    )
    return found
