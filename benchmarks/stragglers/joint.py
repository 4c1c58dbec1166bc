"""Adapting k and the load together, beside adapting k alone, for several ratios of computation to communication."""

from collections.abc import Sequence
from statistics import median

import torch

from benchmarks.report import show, told
from benchmarks.stragglers.least_squares import (
    FEATURES,
    LOAD,
    WORKERS,
    Counts,
    a_of,
    check_reached,
    fleet,
    in_processes,
    trained,
)
from oddlot import AdaptiveLoad, ByError
from oddlot.machines.order_statistics import rounds_of
from oddlot.machines.response import Hypoexponential

RATE, GOAL, RATIOS, COMMUNICATION = 2e-4, 0.01, (0.3, 1.0, 3.0, 10.0), 1.0
"""learning rate, distance, mean seconds of a whole task's computation over those of communication, and these"""
LOADS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 36, LOAD)
POLICIES = ("k alone", "k and load", "both, fitted")
MEASURES = ("seconds", "rounds", "used", "assigned", "uploads")


def measure(quick: bool, ratios: Sequence[float] | None = None) -> dict[str, float]:
    """One table a ratio; the largest quotients of all."""
    seeds, ratios = range(1 if quick else 10), ratios or (RATIOS[1:2] if quick else RATIOS)
    worst = dict[str, float]()
    for ratio in ratios:
        asked = [(ratio, policy, seed) for policy in POLICIES for seed in seeds]
        found = zip(asked, in_processes(_run, asked), strict=True)
        quotients = _table(ratio, {one[1:]: ends for one, ends in found}, seeds)
        print(f"{ratio:g}:", *(f"{name} {value:.3f}" for name, value in quotients.items()), flush=True)
        worst = {name: max(value, worst.get(name, 0.0)) for name, value in quotients.items()}
    return worst


def strategy(ratio: float, policy: str) -> AdaptiveLoad:
    """Whose stages end by the error."""
    switch = ByError(a_of(RATE), "excess")
    if policy == "both, fitted":
        return AdaptiveLoad(switch=switch, loads=LOADS, least=1)
    response = Hypoexponential(COMMUNICATION, ratio * COMMUNICATION / LOAD)
    loads = [LOAD] if policy == "k alone" else LOADS
    return AdaptiveLoad(rounds_of([response] * WORKERS, loads), switch, least=1)


def _run(asked: tuple[float, str, int]) -> tuple[float, Counts]:
    ratio, policy, seed = asked
    start = torch.zeros(FEATURES, dtype=torch.float64)
    machines = fleet(ratio * COMMUNICATION, COMMUNICATION)
    run, counts = trained(
        strategy(ratio, policy), machines, RATE, start, seed, f"lately<={GOAL} or versions>=40000"
    )
    check_reached(run, "lately", GOAL)
    return run.summary["seconds"], counts


def _table(
    ratio: float, found: dict[tuple[str, int], tuple[float, Counts]], seeds: Sequence[int]
) -> dict[str, float]:
    def values(policy: str, measure: str) -> list[float]:
        of = [found[policy, seed] for seed in seeds]
        return [one[0] if measure == "seconds" else float(getattr(one[1], measure)) for one in of]

    rows = [[policy, *(told(values(policy, measure), 0) for measure in MEASURES)] for policy in POLICIES]
    show(f"computation / communication = {ratio:g}: until a distance of {GOAL}", ("adapted", *MEASURES), rows)

    def over(one: str, other: str, measure: str) -> float:
        pairs = zip(values(one, measure), values(other, measure), strict=True)
        return median(a / b for a, b in pairs)

    return {
        "joint_time_ratio_max": over("k and load", "k alone", "seconds"),
        "joint_gradient_ratio_max": over("k and load", "k alone", "used"),
        "joint_iteration_ratio_max": over("k and load", "k alone", "rounds"),
        "fitted_over_oracle": over("both, fitted", "k and load", "seconds"),
    }
