"""Plots of single runs of the joint study: k and load by distance, and distance by time and by computed rows."""

from functools import partial
from itertools import accumulate
from math import log10
from typing import NamedTuple

import torch

from benchmarks.plots import PLOTS, save
from benchmarks.processes import in_processes
from benchmarks.report import Size
from benchmarks.stragglers.joint import BY_ERROR, COMMUNICATION, RATE, goal, strategy
from benchmarks.stragglers.least_squares import FEATURES, LOAD, WORKERS, fleet, problem, trained
from oddlot.report.svg_charts import Line

RATIO = 1.0


class Point(NamedTuple):
    """State of a run at one of its measures."""

    seconds: float
    error: float
    k: int
    load: int
    used: int
    """Rows of merged gradients."""


def measure(size: Size) -> dict[str, float]:
    """Plot three charts of one seed. Return no figures. The quick form has shorter runs."""
    distance = goal(size) * size.pick(1, 1_000, 1)
    runs = dict(zip(BY_ERROR, in_processes(partial(_run, size, distance), BY_ERROR), strict=True))
    _draw_path(size, distance, runs)
    _draw_distance(size, runs)
    kept = f"in {PLOTS}" if size is Size.FULL else "not kept"
    print(f"three plots of {', '.join(runs)}, down to {distance}: {kept}")
    return {}


def _draw_path(size: Size, distance: float, runs: dict[str, list[Point]]) -> None:
    """Plot k and load by the decrease of the distance."""
    begin = float(problem().best.norm())
    fallen = {name: [(log10(begin / one.error), one) for one in points] for name, points in runs.items()}
    alone, both, fitted = BY_ERROR
    path = [
        Line("k, adapted alone", [(down, one.k) for down, one in fallen[alone]], 0),
        Line("k, adapted with the load", [(down, one.k) for down, one in fallen[both]], 1),
        Line("load", [(down, one.load) for down, one in fallen[both]], 2),
        Line("load, fitted", [(down, one.load) for down, one in fallen[fitted]], 2, dashed=True),
    ]
    save(
        size,
        "stragglers_path",
        f"Workers that are waited for (k, of {WORKERS}) and rows for each (load, at most {LOAD})",
        f"orders of magnitude that the distance fell, from {begin:.0f} to {distance}",
        "k, load",
        path,
    )


def _draw_distance(size: Size, runs: dict[str, list[Point]]) -> None:
    """Plot the distance by time and by computed gradients."""
    curves = [
        Line(name, [(one.seconds, log10(one.error)) for one in points], number)
        for number, (name, points) in enumerate(runs.items())
    ]
    about, up = f"computation / communication = {RATIO:g}", "log10(distance)"
    save(size, "stragglers_curves", f"Distance over time, {about}", "seconds", up, curves)
    cost = [
        Line(name, [(one.used / 1e3, log10(one.error)) for one in points], number)
        for number, (name, points) in enumerate(runs.items())
    ]
    save(
        size,
        "stragglers_cost",
        f"Distance over gradients used, {about}",
        "thousand rows of gradients used",
        up,
        cost,
    )


def _run(size: Size, distance: float, policy: str) -> list[Point]:
    start = torch.zeros(FEATURES, dtype=torch.float64)
    machines, until = fleet(RATIO * COMMUNICATION, COMMUNICATION), f"lately<={distance} or versions>=40000"
    run, counts = trained(strategy(RATIO, policy), machines, RATE, start, 0, until, size=size)
    used = list(accumulate(k * load for _, k, load in counts.path))
    found = []
    for row in run.history:
        at = max(0, int(row["versions"]) - 1)
        _, k, load = counts.path[at]
        found.append(Point(row["seconds"], row["error"], k, load, used[at]))
    return found
