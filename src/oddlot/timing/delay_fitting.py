"""Delay models fitted to times that were measured, and how good the fit is."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, sqrt

import numpy as np

from oddlot.core.errors import InvalidValue, UsageError
from oddlot.machines.delay_models import (
    Delay,
    Deterministic,
    Erlang,
    Exponential,
    Lognormal,
    ShiftedExponential,
)
from oddlot.timing.survival import Numbers, survival_of

MAX_STAGES = 10_000
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

    Always the mean, an exponential, one behind a shift (the least time), an Erlang by its variance, a lognormal by that
    of the logarithms. UsageError: fewer than two times, or one that is not finite and above 0.
    """
    try:
        given = np.sort(np.asarray(times, dtype=np.float64))
    except (TypeError, ValueError):
        told = "a fit needs numbers: the times of one machine, of a record `times[name]`"
        raise UsageError(told, "no_numbers", "times", given=times) from None
    if (
        given.ndim != 1
        or len(given) < 2
        or not (np.isfinite(given).all() and given[0] > 0 and given[0] / given[-1] > 0)
    ):
        raise InvalidValue("times", times, "at least two times, each finite and above 0")
    relative = given / given.mean() if given[0] < given[-1] else np.ones_like(given)
    found = [Fit(delay, _distance(relative, delay), len(given)) for delay in _models(relative)]
    return sorted(found, key=lambda fit: fit.distance)


def _models(times: Numbers) -> list[Delay]:
    shift = min(float(times[0]), 1 - 1e-9)
    stages = int(np.clip(round(1 / max(float(times.var()), 1 / MAX_STAGES)), 1, MAX_STAGES))
    spread = max(float(np.log(times).std()), 1e-9)
    found: list[Delay] = [Deterministic(), Exponential(), ShiftedExponential(shift), Erlang(stages)]
    return [*found, Lognormal(sqrt(expm1(spread**2)))] if spread < WIDEST else found


def _distance(times: Numbers, delay: Delay) -> float:
    """Of the steps that the sorted times make to the model, at each time and just before it."""
    at = before = 1 - survival_of(delay, times)
    if isinstance(delay, Deterministic):  # a step itself
        before = 1 - survival_of(delay, np.nextafter(times, 0))
    below = [np.searchsorted(times, times, side) / len(times) for side in ("left", "right")]
    return float(max(abs(below[1] - at).max(), abs(before - below[0]).max()))
