"""Delay models fitted to measured times, with the quality of each fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, sqrt

import numpy as np

from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.machines import delay_models
from oddlot.timing.survival import Numbers, survival_of

MAX_STAGES = 10_000
WIDEST = 3.5
"""Largest standard deviation of the logarithms to fit a lognormal model."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A delay model of mean 1, fitted to measured times."""

    delay: delay_models.Delay
    """The fitted model."""
    distance: float
    """Kolmogorov-Smirnov statistic: largest difference between the two distribution functions, from 0 to 1."""
    measured: int
    """Number of measured times, n. Sampling alone causes a distance of about 0.9/sqrt(n)."""


def fit_delays(times: Sequence[float]) -> list[Fit]:
    """Return all delay models fitted to `times`, relative to their mean, best fit first.

    The models are deterministic, exponential, shifted exponential (the shift is the smallest time), Erlang (by the
    variance) and lognormal (by the variance of the logarithms). Raise UsageError for fewer than two times, or for a
    time that is not finite and above 0.
    """
    try:
        given = np.sort(np.asarray(times, dtype=np.float64))
    except (TypeError, ValueError):
        message = "times must be numbers: the times of one machine, such as `times[name]` of a trace"
        raise UsageError(message, "no_numbers", "times", given=times) from None
    if (
        given.ndim != 1
        or len(given) < 2
        or not (np.isfinite(given).all() and given[0] > 0 and given[0] / given[-1] > 0)
    ):
        raise InvalidValue("times", times, "at least two times, each finite and above 0")
    relative = given / given.mean() if given[0] < given[-1] else np.ones_like(given)
    found = [Fit(delay, _distance(relative, delay), len(given)) for delay in _models(relative)]
    return sorted(found, key=lambda fit: fit.distance)


def _models(times: Numbers) -> list[delay_models.Delay]:
    shift = min(float(times[0]), 1 - 1e-9)
    stages = int(np.clip(round(1 / max(float(times.var()), 1 / MAX_STAGES)), 1, MAX_STAGES))
    spread = max(float(np.log(times).std()), 1e-9)
    found: list[delay_models.Delay] = [
        delay_models.Deterministic(),
        delay_models.Exponential(),
        delay_models.ShiftedExponential(shift),
        delay_models.Erlang(stages),
    ]
    return [*found, delay_models.Lognormal(sqrt(expm1(spread**2)))] if spread < WIDEST else found


def _distance(times: Numbers, delay: delay_models.Delay) -> float:
    """Return the largest distance between the empirical distribution of sorted times and the model."""
    at = before = 1 - survival_of(delay, times)
    if isinstance(delay, delay_models.Deterministic):  # the model is a step function
        before = 1 - survival_of(delay, np.nextafter(times, 0))
    below = [np.searchsorted(times, times, side) / len(times) for side in ("left", "right")]
    return float(max(abs(below[1] - at).max(), abs(before - below[0]).max()))
