"""Final error with fixed k, and speedup of adaptive k."""

from collections.abc import Callable
from functools import partial
from math import sqrt
from statistics import fmean, median

import numpy as np
import torch

from benchmarks.processes import in_processes
from benchmarks.report import Size, median_and_range, show
from benchmarks.stragglers.least_squares import (
    LOAD,
    WORKERS,
    Held,
    a_of,
    check_reached,
    fleet,
    floor,
    problem,
    trained,
)
from oddlot import AdaptiveK, AdaptiveLoad, FastestK, Strategy
from oddlot.strategies import ByError, ByGradients
from oddlot.timing.order_statistics import rounds_of
from oddlot.timing.response_times import Hypoexponential

RATE, KS, SECONDS, NOTHING = 5e-4, (10, 20, 30, 40), 1.0, 1e-9
"""Learning rate, k and mean seconds of a task in the paper's figure 2. Communication takes no time."""
FAR = 25.0
"""Initial distance from the solution, as in the figure."""
OURS, PAPERS = "by signs of windows' sums", "by signs of rounds (algorithm 1)"
CLOSE = 1.1
"""Multiple of the floor that counts as reached, by the root mean square of the last ten measures."""


def measure(size: Size) -> dict[str, float]:
    """Print both tables, and return their figures."""
    seeds = range(size.pick(1, 1, 10))
    return _floors(size, seeds, size.pick(3, 1_500, 3_000)) | _speedup(size, seeds)


def _start(distance: float, seed: int) -> torch.Tensor:
    """Return weights at a distance from the solution, in a random direction."""
    off = torch.from_numpy(np.random.default_rng(seed).standard_normal(len(problem().best)))
    away: torch.Tensor = off * (distance / off.norm())
    return problem().best + away


def _floors(size: Size, seeds: range, rounds: int) -> dict[str, float]:
    """Return the largest relative error of the closed form.

    A run starts at twice the floor. Its distance is the root mean square over the last two thirds of the rounds.
    """
    asked = [(k, seed, rounds) for k in KS for seed in seeds]
    found = in_processes(partial(_ends, size), asked)
    rows, worst = list[list[str]](), 0.0
    for k in KS:
        ends = [end for (one, *_), end in zip(asked, found, strict=True) if one == k]
        closed = floor(RATE, k)
        worst = max(worst, abs(median(ends) / closed - 1))
        rows.append([f"{k}", median_and_range(ends, 5), f"{closed:.5f}", f"{median(ends) / closed:.3f}"])
    show(
        f"distance at the end of {rounds:,} rounds, {len(seeds)} seeds",
        ("k", "measured", "closed form", "ratio"),
        rows,
    )
    return {"floor_error_max": worst}


def _ends(size: Size, asked: tuple[int, int, int]) -> float:
    k, seed, rounds = asked
    start = _start(2 * floor(RATE, k), seed)
    goal, machines = f"versions>={rounds}", fleet(SECONDS, NOTHING)
    run, _ = trained(FastestK(k=k), machines, RATE, start, seed, goal, Held, size)
    return sqrt(fmean(row["error"] ** 2 for row in run.history if row["versions"] > rounds / 3))


def _close(size: Size) -> float:
    return size.pick(12_400 * CLOSE, CLOSE, CLOSE)


def _policies() -> dict[str, Callable[[], Strategy]]:
    table = rounds_of([Hypoexponential(NOTHING, SECONDS / LOAD)] * WORKERS, [LOAD], KS)
    return {
        "k = 40": lambda: FastestK(k=40),
        OURS: lambda: AdaptiveK(k=10, rise=10, most=40),
        PAPERS: lambda: AdaptiveK(k=10, rise=10, most=40, switch=ByGradients(1, 10, 200)),
        "by the known error": lambda: AdaptiveLoad(table, ByError(a_of(RATE), "excess"), least=1),
    }


def _speedup(size: Size, seeds: range) -> dict[str, float]:
    """Return the speedups to the floor of k = 40, from a large initial distance."""
    asked = [(name, seed) for name in _policies() for seed in seeds]
    found = dict(zip(asked, in_processes(partial(_reaches, size), asked), strict=True))
    rows, ratios = list[list[str]](), dict[str, float]()
    for name in _policies():
        seconds = [found[name, seed][0] for seed in seeds]
        times = [found["k = 40", seed][0] / found[name, seed][0] for seed in seeds]
        ratios[name] = median(times)
        used = [found[name, seed][1] / 1e6 for seed in seeds]
        rows.append(
            [name, median_and_range(seconds, 0), median_and_range(times, 2), median_and_range(used, 2)]
        )
    show(
        f"until {_close(size):g} times the floor of k = 40, from a distance of {FAR:g}, {len(seeds)} seeds",
        ("k", "seconds", "times as soon", "million rows used"),
        rows,
    )
    return {
        "adaptive_k_speedup": ratios[OURS],
        "adaptive_k_speedup_by_algorithm_1": ratios[PAPERS],
        "adaptive_k_speedup_by_known_error": ratios["by the known error"],
    }


def _reaches(size: Size, asked: tuple[str, int]) -> tuple[float, int]:
    """Return the seconds and the rows that were used."""
    name, seed = asked
    close = _close(size) * floor(RATE, 40)
    goal = f"lately<={close} or versions>=20000"
    machines, start = fleet(SECONDS, NOTHING), _start(FAR, seed)
    run, counts = trained(_policies()[name](), machines, RATE, start, seed, goal, Held, size)
    check_reached(run, "lately", close)
    return run.summary["seconds"], counts.used
