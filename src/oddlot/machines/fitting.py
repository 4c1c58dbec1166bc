"""Delay models fitted to times that were measured, and how good the fit is."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

from oddlot.core.errors import UsageError
from oddlot.machines.delays import Delay, Erlang, Exponential, Lognormal, ShiftedExponential
from oddlot.machines.survival import Numbers, survival_of

MOST_STAGES = 10_000
WIDEST = 3.5
"""of the logarithms' standard deviations: beyond it no lognormal is fitted"""


@dataclass(frozen=True, slots=True)
class Fit:
    """A delay model of mean 1, and how far it is from what was measured."""

    delay: Delay
    distance: float
    """the largest difference of the two distribution functions (Kolmogorov and Smirnov's statistic), from 0 to 1"""
    measured: int
    """how many times it was fitted to: their own distribution is a distance of about 0.9 over its root from the true
    one"""


def fit_delays(times: Sequence[float]) -> list[Fit]:
    """Every model that has a distribution, fitted to these times over their mean; the nearest first.

    An exponential, one behind a shift (the least time), an Erlang by its variance, a lognormal by that of the
    logarithms. UsageError: fewer than two times, or one that is not finite and above 0.
    """
    try:
        given = np.sort(np.asarray(times, dtype=np.float64))
    except (TypeError, ValueError):
        raise UsageError("a fit needs numbers: the times of one machine, of a record `times[name]`") from None
    if (
        given.ndim != 1
        or len(given) < 2
        or not (np.isfinite(given).all() and given[0] > 0 and given[0] / given[-1] > 0)
    ):
        raise UsageError("a fit needs at least two times, each finite and above 0")
    relative = given / given.mean()
    found = [
        Fit(delay, _distance(relative, survival_of(delay, relative)), len(given))
        for delay in _models(relative)
    ]
    return sorted(found, key=lambda fit: fit.distance)


def _models(times: Numbers) -> list[Delay]:
    shift = min(float(times[0]), 1 - 1e-9)
    stages = int(np.clip(round(1 / max(float(times.var()), 1 / MOST_STAGES)), 1, MOST_STAGES))
    spread = max(float(np.log(times).std()), 1e-9)
    found: list[Delay] = [Exponential(), ShiftedExponential(shift), Erlang(stages)]
    return [*found, Lognormal(sqrt(exp(spread**2) - 1))] if spread < WIDEST else found


def _distance(times: Numbers, survival: Numbers) -> float:
    """Of the steps that the sorted times make to the model."""
    below, count = 1 - survival, len(times)
    steps = np.arange(count + 1) / count
    return float(max((steps[1:] - below).max(), (below - steps[:-1]).max()))
