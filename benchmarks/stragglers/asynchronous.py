"""Adaptive k compared with asynchronous steps, as in figure 3 of the paper.

In the figure, asynchronous steps end at a distance of 0.015 with its learning rate. This is the closed form for
gradients without staleness (k = 1), and a single worker as fast as all 50 ends there. Gradients of 50 workers have a
mean staleness of 49 versions. Without damping, they diverge at the figure's rate, so the baseline has the best rate of
a grid. `Asynchronous` damps by default. The figure's rate then works, but most steps are short.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, sqrt
from statistics import fmean, median
from typing import NamedTuple

import torch

from benchmarks.processes import in_processes
from benchmarks.report import Measured, Size, median_and_range, show
from benchmarks.stragglers.floors import NOTHING, SECONDS
from benchmarks.stragglers.least_squares import (
    FEATURES,
    WORKERS,
    Drawn,
    Held,
    fleet,
    floor,
    trained,
)
from oddlot import AdaptiveK, Asynchronous, Strategy
from oddlot.strategies import ByGradients

RATE, ENDS, DIVERGED = 2e-4, 1_000.0, 1e6
"""Learning rate and seconds of the figure, and a distance far above the initial distance of about 600."""


class Setting(NamedTuple):
    """A row of the table."""

    make: Callable[[], Strategy]
    rate: float = RATE
    alone: bool = False
    """True for a single worker as fast as all workers, and thus without staleness."""


def _undamped(rate: float) -> Setting:
    return Setting(partial(Asynchronous, damping=0.0), rate)


OURS, DAMPED, FRESH = "k from 1 to 36, by signs of windows' sums", "asynchronous, damped", "not stale"
UNDAMPED = {f"asynchronous, undamped, rate {rate:g}": _undamped(rate) for rate in (RATE, 5e-5, 1e-4, 2e-5)}
SETTINGS: dict[str, Setting] = {
    OURS: Setting(lambda: AdaptiveK(rise=5, most=36)),
    DAMPED: Setting(Asynchronous),
    FRESH: Setting(Asynchronous, alone=True),
    **UNDAMPED,
    "asynchronous, damped, rate 0.0006": Setting(Asynchronous, 6e-4),
    "k from 1 to 36, by signs of rounds (algorithm 1)": Setting(
        lambda: AdaptiveK(rise=5, most=36, switch=ByGradients(1, 10, 200))
    ),
}
"""Settings of a full run. The smoke form and the quick form have the first five."""


def measure(size: Size) -> Mapping[str, Measured]:
    """Print the table. Return the distance of undamped asynchronous steps at the best rate, and the distance of
    adaptive k divided by it."""
    seeds, ends = range(size.pick(1, 1, 10)), size.pick(0.4, ENDS, ENDS)
    names = list(SETTINGS)[: size.pick(5, 5, None)]
    asked = [(name, seed) for name in names for seed in seeds]
    runs = dict(zip(asked, in_processes(partial(_run, size, ends), asked), strict=True))
    found = {name: [runs[name, seed] for seed in seeds] for name in names}
    show(
        f"distance after {ends:,.0f} s, {len(seeds)} seeds; closed form for k = 1 {floor(RATE, 1):.4f}, "
        f"for k = 36 {floor(RATE, 36):.4f}",
        ("", "learning rate", "distance"),
        [[name, f"{SETTINGS[name].rate:g}", median_and_range(some, 4)] for name, some in found.items()],
    )
    return _figures(found)


def _figures(found: Mapping[str, Sequence[float]]) -> Mapping[str, Measured]:
    """Return the figures. Runs that diverged have infinite distances."""
    best = min((some for name, some in found.items() if name in UNDAMPED), key=median)
    ratios = [ours / theirs for ours, theirs in zip(found[OURS], best, strict=True)]
    return {"asynchronous_error": best, "adaptive_k_error_over_asynchronous": ratios}


def _run(size: Size, ends: float, asked: tuple[str, int]) -> float:
    """Return the root mean square of the last ten measured distances."""
    name, seed = asked
    setting, start = SETTINGS[name], torch.zeros(FEATURES, dtype=torch.float64)
    machines = fleet(SECONDS / WORKERS, NOTHING)[:1] if setting.alone else fleet(SECONDS, NOTHING)
    data = Drawn if setting.alone else Held
    goal = f"seconds>={ends} or error>={DIVERGED}"
    run, _ = trained(setting.make(), machines, setting.rate, start, seed, goal, data, size)
    if "error" in run.ended:
        return inf
    return sqrt(fmean(row["error"] ** 2 for row in run.history[-10:]))
