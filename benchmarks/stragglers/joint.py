"""Adaptation of k and load compared with adaptation of k alone, for several ratios of computation to communication."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

import torch

from benchmarks.processes import in_processes
from benchmarks.report import Size, median_and_range, show
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
"""Learning rate, distance to reach, ratios of a full task's computation to communication, mean communication
seconds."""
LOADS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 36, LOAD)
BY_ERROR = ("k alone", "k and load", "k and load, fitted")
"""Policies with stages by the known error and constant. Fitted: response times are measured during the run."""
DEFAULTS = "k and load, with the defaults"
BY_SIGNS: dict[str, Callable[[], Strategy]] = {
    "k alone, by signs": AdaptiveK,
    "k and load, by signs": lambda: AdaptiveLoad(loads=LOADS, least=1),
    DEFAULTS: AdaptiveLoad,
}
"""Policies without such knowledge. Rounds of the last policy initially have the job's batch, LOAD rows."""
AT_ONE = {
    "least_default_time_over_adaptive_k": (DEFAULTS, "k alone, by signs", "seconds"),
    "gradients_assigned_ratio": (DEFAULTS, "k alone, by signs", "assigned"),
}
WORST = {
    "joint_time_ratio_max": ("k and load", "k alone", "seconds"),
    "joint_gradient_ratio_max": ("k and load", "k alone", "used"),
    "joint_iteration_ratio_max": ("k and load", "k alone", "rounds"),
    "fitted_over_oracle": ("k and load, fitted", "k and load", "seconds"),
    "joint_time_ratio_by_signs_max": ("k and load, by signs", "k alone, by signs", "seconds"),
    "joint_gradient_ratio_by_signs_max": ("k and load, by signs", "k alone, by signs", "used"),
    "joint_iteration_ratio_by_signs_max": ("k and load, by signs", "k alone, by signs", "rounds"),
}
"""Figures: a policy, the policy that it is compared with, and the measure."""
POLICIES = (*BY_ERROR, *BY_SIGNS)
QUICK = ("k alone, by signs", DEFAULTS)
"""Policies of the quick form."""
MEASURES = ("seconds", "rounds", "used", "assigned", "uploads", "megabytes", "wasted")
"""`used` and `assigned` are rows. `wasted` is a part of the megabytes."""


def measure(size: Size, ratios: Sequence[float] | None = None) -> dict[str, float]:
    """Print a table for each ratio. Return the quotients at a ratio of 1, and the largest of all ratios in a full
    run."""
    seeds, ratios = range(size.pick(1, 1, 10)), ratios or size.pick(RATIOS[1:2], RATIOS[1:2], RATIOS)
    policies = size.pick(POLICIES, QUICK, POLICIES)
    figures, worst = dict[str, float](), dict[str, float]()
    for ratio in ratios:
        asked = [(ratio, policy, seed) for policy in policies for seed in seeds]
        ends = dict(zip(asked, in_processes(partial(_run, size), asked), strict=True))
        found = {policy: [ends[ratio, policy, seed] for seed in seeds] for policy in policies}
        _show(size, ratio, found)
        if ratio == 1.0:
            figures = _quotients(found, AT_ONE)
        worst = {name: max(value, worst.get(name, 0.0)) for name, value in _quotients(found, WORST).items()}
        print(f"{ratio:g}:", *(f"{name} {value:.3f}" for name, value in worst.items()), flush=True)
    is_complete = set(ratios) == set(RATIOS) or size is Size.SMOKE
    return figures | worst if is_complete else figures


def strategy(ratio: float, policy: str) -> Strategy:
    """Return a new strategy, by its name in `POLICIES`."""
    if policy in BY_SIGNS:
        return BY_SIGNS[policy]()
    switch = ByError(a_of(RATE), "excess")
    if policy == "k and load, fitted":
        return AdaptiveLoad(switch=switch, loads=LOADS, least=1)
    response = Hypoexponential(COMMUNICATION, ratio * COMMUNICATION / LOAD)
    loads = LOADS if policy == "k and load" else [LOAD]
    return AdaptiveLoad(rounds_of([response] * WORKERS, loads), switch, least=1)


def goal(size: Size) -> float:
    """Return the distance that ends a run. The initial distance is about 580."""
    return size.pick(400.0, GOAL, GOAL)


def _run(size: Size, asked: tuple[float, str, int]) -> dict[str, float]:
    ratio, policy, seed = asked
    return until_goal(size, strategy(ratio, policy), fleet(ratio * COMMUNICATION, COMMUNICATION), seed)


def until_goal(size: Size, strategy: Strategy, machines: list[Machine], seed: int) -> dict[str, float]:
    """Run to the goal, and return the measures."""
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


Found = Mapping[str, Sequence[Mapping[str, float]]]
"""Measures of the runs, by policy."""


def _show(size: Size, ratio: float, found: Found) -> None:
    rows = [
        [policy, *(median_and_range([run[measure] for run in runs], 0) for measure in MEASURES)]
        for policy, runs in found.items()
    ]
    show(
        f"computation / communication = {ratio:g}: until a distance of {goal(size)}",
        ("adapted", *MEASURES),
        rows,
    )


def _quotients(found: Found, figures: Mapping[str, tuple[str, str, str]]) -> dict[str, float]:
    """Return the medians over the seeds of one policy's measure / another's. Skip figures of missing policies."""
    return {
        name: median(a[measure] / b[measure] for a, b in zip(found[one], found[other], strict=True))
        for name, (one, other, measure) in figures.items()
        if {one, other} <= found.keys()
    }
