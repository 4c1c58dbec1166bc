"""The bound of the paper's example: error over time with each k alone, and with the switch times of theorem 1.

Kas Hanna et al., "Adaptive Distributed SGD for Fast Convergence in the Presence of Stragglers" (ICASSP 2020),
proposition 1 and theorem 1: five workers with exponential times.
"""

from itertools import pairwise
from math import log10

import numpy as np

from benchmarks.plots import save
from benchmarks.report import Size, show
from oddlot.report.svg_charts import Line
from oddlot.strategies.support.round_planning import RoundKind, stages, switch_times
from oddlot.timing.order_statistics import rounds_of
from oddlot.timing.response_times import Hypoexponential

WORKERS, MEAN, SAMPLES, NOTHING = 5, 0.2, 10, 1e-9
"""MEAN: mean seconds of a task. NOTHING: seconds of communication. The example ignores them."""
ETA, L, VARIANCE, C, ERROR = 0.001, 2.0, 10.0, 1.0, 100.0
A = ETA * L * VARIANCE / (2 * C)
"""Floor of rounds with one sample."""
UNTIL, POINTS = 3_000.0, 300
"""Seconds of the plot, and number of points."""


def measure(size: Size) -> dict[str, float]:
    """Save the plot, and print a table of the switch times. Return no figures."""
    workers = [Hypoexponential(NOTHING, MEAN / SAMPLES)] * WORKERS
    choices = [RoundKind(*row) for row in rounds_of(workers, [SAMPLES])]
    found = stages(choices)
    begins = [
        (0.0, found[0].choice),
        *((at, _with(k, choices)) for at, k in switch_times(found, A, ERROR, ETA * C)),
    ]
    _draw(size, choices, begins)
    rows = [
        [f"{now.k} to {then.k}", f"{at:.0f}", f"{_error(begins, at):.2g}"]
        for (_, now), (at, then) in pairwise(begins)
    ]
    show("theorem 1, five workers: when k rises", ("k", "seconds", "error"), rows)
    return {}


def _draw(size: Size, choices: list[RoundKind], begins: list[tuple[float, RoundKind]]) -> None:
    seconds = np.linspace(UNTIL / 20, UNTIL, POINTS).tolist()  # at 0 s all errors are equal
    drawn = [_line(f"k = {one.k}", [(0.0, one)], seconds, one.k) for one in choices]
    save(
        size,
        "stragglers_theory",
        "The bound on the error: each k alone, and the times of theorem 1",
        "seconds",
        "log10(error)",
        [*drawn, _line("theorem 1", begins, seconds, 0, dashed=True)],
    )


def _with(k: int, choices: list[RoundKind]) -> RoundKind:
    return next(one for one in choices if one.k == k)


def _line(
    name: str, begins: list[tuple[float, RoundKind]], seconds: list[float], color: int, dashed: bool = False
) -> Line:
    return Line(name, [(at, log10(_error(begins, at))) for at in seconds], color, dashed)


def _error(begins: list[tuple[float, RoundKind]], now: float) -> float:
    """Return the bound of proposition 1. In each round, the excess over the stage's floor is multiplied by 1 - eta
    c."""
    error = ERROR
    for (at, choice), (end, _) in pairwise([*begins, (now, begins[-1][1])]):
        rounds = max(0.0, min(end, now) - at) / choice.seconds
        floor = A * choice.floor
        error = floor + (1 - ETA * C) ** rounds * (error - floor)
    return error
