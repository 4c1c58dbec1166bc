"""The best momentum on least squares, measured with asynchronous groups and predicted by theorem 7."""

import numpy as np

from benchmarks.report import show
from oddlot.planner.statistical_efficiency import best_momentum, theorem_7_rate, updates_needed

LR = 0.25
MOMENTA = tuple(round(-0.9 + 0.1 * number, 1) for number in range(19))
REDUCTION = 1e-3
"""Reduction of the distance to the optimum that is measured. The theorem is about many updates."""


def distance(condition: float, groups: int, momentum: float, updates: int, runs: int) -> float:
    """Return the distance of the mean weights of many runs from the optimum.

    SGD with momentum starts at weights of 1 on the loss 0.5 * (w[0]**2 + w[1]**2 / condition). The gradient of an
    update is that of the weights that its worker got after its last update. Exponential times have no memory: each of
    the workers is the next one with the same probability.
    """
    rng = np.random.default_rng(0)
    curvatures, number = np.array([1.0, 1 / condition]), np.arange(runs)
    held = np.ones((groups, runs, 2))
    weights, velocity = np.ones((runs, 2)), np.zeros((runs, 2))
    for _ in range(updates):
        worker = rng.integers(groups, size=runs)
        velocity = momentum * velocity + curvatures * held[worker, number]
        weights = weights - LR * velocity
        held[worker, number] = weights
    return float(np.linalg.norm(weights.mean(0)))


def differences(conditions: tuple[float, ...], groups: tuple[int, ...], runs: int) -> list[float]:
    """Return the differences between the best measured and the best predicted momentum."""
    found, rows = [], []
    for condition in conditions:
        for count in groups:
            predicted, rate = best_momentum(LR, (1.0, 1 / condition), count, MOMENTA)
            updates = max(20, round(updates_needed(rate, REDUCTION)))
            far = {
                each: distance(condition, count, each, updates, 1 if count == 1 else runs) for each in MOMENTA
            }
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
        f"best momentum at a learning rate of {LR}, {runs} runs each",
        ["condition", "groups", "theorem 7", "measured", "updates by theorem 7", "... with 0.9"],
        rows,
    )
    return found
