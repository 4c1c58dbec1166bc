"""Survival functions of delay models: the probability that a time is longer than a given time."""

from math import erfc, log1p, sqrt

import numpy as np
from numpy.typing import NDArray

from oddlot.machines import delay_models

Numbers = NDArray[np.float64]
BLOCK = 1 << 22
"""Largest number of terms of a sum that are in memory at once."""


def survival_of(delay: delay_models.Delay, times: Numbers) -> Numbers:
    """Return the probability that a factor of the delay model is above each of `times`. They are at least 0."""
    match delay:
        case delay_models.Exponential():
            return np.exp(-times)
        case delay_models.ShiftedExponential(shift):
            return np.exp(-np.maximum(times - shift, 0.0) / (1 - shift))
        case delay_models.Erlang(shape):
            return poisson_below(times * shape, shape)
        case delay_models.Lognormal(cv) if cv:
            return _lognormal_above(times, log1p(cv**2))
        case delay_models.Trace(multipliers):
            return 1 - np.searchsorted(np.sort(multipliers), times, "right") / len(multipliers)
        case delay_models.Deterministic() | delay_models.Lognormal():
            return np.where(times < 1, 1.0, 0.0)


def _lognormal_above(times: Numbers, variance: float) -> Numbers:
    """Return the survival function of a lognormal with mean 1. `variance` is the variance of the logarithms."""
    with np.errstate(divide="ignore"):
        at = (np.log(times) + variance / 2) / sqrt(variance)
    return np.array([0.5 * erfc(value / sqrt(2)) for value in at.tolist()])


def poisson_below(means: Numbers, count: int) -> Numbers:
    """Return the probability of fewer than `count` Poisson events, for each mean in `means`."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count)))])  # log(j!) for each j
    found, rows = np.empty_like(means), max(1, BLOCK // count)
    with np.errstate(divide="ignore", invalid="ignore"):
        for low in range(0, len(means), rows):
            some = means[low : low + rows, None]
            terms = np.arange(count) * np.log(some) - logs - some
            terms[:, 0] = -some[:, 0]
            found[low : low + rows] = np.exp(terms).sum(1)
    return np.minimum(found, 1.0)
