"""Adapting k beside asynchronous steps: the paper's figure 3.

Gradients of 50 workers are 49 versions late on average, with which steps at the figure's rate leave the numbers when
they count in full; so each counts for its share, as `Asynchronous` has it.
"""

from collections.abc import Callable
from functools import partial
from math import sqrt
from statistics import fmean, median

import torch

from benchmarks.processes import in_processes
from benchmarks.report import Size, show, told
from benchmarks.stragglers.floors import NOTHING, SECONDS
from benchmarks.stragglers.least_squares import FEATURES, Held, fleet, floor, trained
from oddlot import AdaptiveK, Asynchronous, Strategy
from oddlot.strategies import ByGradients

RATE, ENDS = 2e-4, 1_000.0
"""the figure's learning rate, and the seconds that it shows"""
OURS, OTHER = "k from 1 to 36, by signs of windows' sums", "asynchronous"
POLICIES: dict[str, Callable[[], Strategy]] = {
    OURS: lambda: AdaptiveK(rise=5, most=36),
    "k from 1 to 36, by signs of rounds (algorithm 1)": lambda: AdaptiveK(
        rise=5, most=36, switch=ByGradients(1, 10, 200)
    ),
    OTHER: Asynchronous,
}


def measure(size: Size) -> dict[str, float]:
    """The table; our distance at the end over that of asynchronous steps."""
    seeds, ends = range(size.pick(1, 1, 10)), size.pick(0.4, ENDS, ENDS)
    asked = [(name, seed) for name in POLICIES for seed in seeds]
    found = dict(zip(asked, in_processes(partial(_run, size, ends), asked), strict=True))
    rows = [[name, told([found[name, seed] for seed in seeds], 4)] for name in POLICIES]
    show(
        f"distance after {ends:,.0f} s, {len(seeds)} seeds; closed form for k = 1 {floor(RATE, 1):.4f}, "
        f"for k = 36 {floor(RATE, 36):.4f}",
        ("", "distance"),
        rows,
    )
    ratios = (found[OURS, seed] / found[OTHER, seed] for seed in seeds)
    return {"adaptive_k_error_over_asynchronous": median(ratios)}


def _run(size: Size, ends: float, asked: tuple[str, int]) -> float:
    """Root mean square of the last ten measured distances."""
    name, seed = asked
    start = torch.zeros(FEATURES, dtype=torch.float64)
    goal, machines = f"seconds>={ends}", fleet(SECONDS, NOTHING)
    run, _ = trained(POLICIES[name](), machines, RATE, start, seed, goal, Held, size)
    return sqrt(fmean(row["error"] ** 2 for row in run.history[-10:]))
