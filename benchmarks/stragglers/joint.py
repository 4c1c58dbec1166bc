"""Adapting k and the load together, beside adapting k alone, for several ratios of computation to communication."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch

from benchmarks.processes import in_processes
from benchmarks.report import Size, show, told
from benchmarks.stragglers.least_squares import (
    FEATURES,
    LOAD,
    WORKERS,
    a_of,
    check_reached,
    fleet,
    trained,
)
from oddlot import AdaptiveK, AdaptiveLoad, Machine, Strategy
from oddlot.strategies import ByError
from oddlot.timing.order_statistics import rounds_of
from oddlot.timing.response_times import Hypoexponential

RATE, GOAL, RATIOS, COMMUNICATION = 2e-4, 0.01, (0.3, 1.0, 3.0, 10.0), 1.0
"""learning rate, distance, mean seconds of a whole task's computation over those of communication, and these"""
LOADS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 36, LOAD)
BY_ERROR = ("k alone", "k and load", "k and load, fitted")
"""whose stages end by the error and a constant that are known; fitted: response times are measured in the run"""
BY_SIGNS: dict[str, Callable[[], Strategy]] = {
    "k alone, by signs": AdaptiveK,
    "k and load, by signs": lambda: AdaptiveLoad(loads=LOADS, least=1),
    "k and load, with the defaults": AdaptiveLoad,
}
"""which are not told anything; the last one's rounds have a job's batch at least, LOAD rows"""
POLICIES = (*BY_ERROR, *BY_SIGNS)
MEASURES = ("seconds", "rounds", "used", "assigned", "uploads", "megabytes", "wasted")
"""used and assigned: rows; wasted: of the megabytes"""


def measure(size: Size, ratios: Sequence[float] | None = None) -> dict[str, float]:
    """One table a ratio; the largest quotients of all."""
    seeds, ratios = range(size.pick(1, 1, 10)), ratios or size.pick(RATIOS[1:2], RATIOS[1:2], RATIOS)
    worst = dict[str, float]()
    for ratio in ratios:
        asked = [(ratio, policy, seed) for policy in POLICIES for seed in seeds]
        found = zip(asked, in_processes(partial(_run, size), asked), strict=True)
        quotients = _table(size, ratio, {one[1:]: ends for one, ends in found}, seeds)
        print(f"{ratio:g}:", *(f"{name} {value:.3f}" for name, value in quotients.items()), flush=True)
        worst = {name: max(value, worst.get(name, 0.0)) for name, value in quotients.items()}
    return worst


def strategy(ratio: float, policy: str) -> Strategy:
    """One of `POLICIES`."""
    if policy in BY_SIGNS:
        return BY_SIGNS[policy]()
    switch = ByError(a_of(RATE), "excess")
    if policy == "k and load, fitted":
        return AdaptiveLoad(switch=switch, loads=LOADS, least=1)
    response = Hypoexponential(COMMUNICATION, ratio * COMMUNICATION / LOAD)
    loads = LOADS if policy == "k and load" else [LOAD]
    return AdaptiveLoad(rounds_of([response] * WORKERS, loads), switch, least=1)


def goal(size: Size) -> float:
    """The distance that ends a run, from one of about 580."""
    return size.pick(400.0, GOAL, GOAL)


def _run(size: Size, asked: tuple[float, str, int]) -> dict[str, float]:
    ratio, policy, seed = asked
    return until_goal(size, strategy(ratio, policy), fleet(ratio * COMMUNICATION, COMMUNICATION), seed)


def until_goal(size: Size, strategy: Strategy, machines: list[Machine], seed: int) -> dict[str, float]:
    """The measures of a run."""
    start, until = torch.zeros(FEATURES, dtype=torch.float64), f"lately<={goal(size)} or versions>=40000"
    run, counts = trained(strategy, machines, RATE, start, seed, until, size=size)
    check_reached(run, "lately", goal(size))
    figures = run.summary
    counted = {name: float(getattr(counts, name)) for name in ("rounds", "used", "assigned", "uploads")}
    return counted | {
        "seconds": figures["seconds"],
        "megabytes": (figures["bytes_up"] + figures["bytes_down"]) / 1e6,
        "wasted": figures["bytes_wasted"] / 1e6,
    }


def _table(
    size: Size, ratio: float, found: dict[tuple[str, int], dict[str, float]], seeds: Sequence[int]
) -> dict[str, float]:
    def values(policy: str, measure: str) -> list[float]:
        return [found[policy, seed][measure] for seed in seeds]

    rows = [[policy, *(told(values(policy, measure), 0) for measure in MEASURES)] for policy in POLICIES]
    show(
        f"computation / communication = {ratio:g}: until a distance of {goal(size)}",
        ("adapted", *MEASURES),
        rows,
    )

    def over(one: str, other: str, measure: str) -> float:
        pairs = zip(values(one, measure), values(other, measure), strict=True)
        return median(a / b for a, b in pairs)

    return {
        "joint_time_ratio_max": over("k and load", "k alone", "seconds"),
        "joint_gradient_ratio_max": over("k and load", "k alone", "used"),
        "joint_iteration_ratio_max": over("k and load", "k alone", "rounds"),
        "fitted_over_oracle": over("k and load, fitted", "k and load", "seconds"),
        "joint_time_ratio_by_signs_max": over("k and load, by signs", "k alone, by signs", "seconds"),
        "joint_gradient_ratio_by_signs_max": over("k and load, by signs", "k alone, by signs", "used"),
        "joint_iteration_ratio_by_signs_max": over("k and load, by signs", "k alone, by signs", "rounds"),
    }
