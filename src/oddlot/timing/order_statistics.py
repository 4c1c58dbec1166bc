"""Mean times until the fastest k of n workers have finished: order statistics of their response times."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from oddlot.core.support.errors import InvalidValue
from oddlot.core.support.validation import is_a
from oddlot.timing.response_times import Measured, Response
from oddlot.timing.survival import Numbers

POINTS, FEW_POINTS = 2_000, 200
"""Numbers of points to integrate survival functions, denser at short times, and to find their end."""
MAX_JUMPS = 500
"""Largest number of terms in sums over step functions. Terms are denser at early and late times. These determine the
times of the first few and of all workers."""
NEVER = 1e-9
"""Expected number of unfinished workers that is neglected."""
MAX_KS = 64
"""Default number of values of k."""
BLOCK = 1 << 22
"""Largest number of probabilities in memory at once."""


def rounds_of(
    workers: Iterable[Response], loads: Iterable[int], ks: Iterable[int] = ()
) -> tuple[tuple[int, int, float], ...]:
    """Return rows of (k, samples, mean seconds) of rounds that wait for k workers with `samples` each.

    Args:
        workers: Model of the response times of each worker.
        loads: Numbers of samples per task.
        ks: Numbers of workers to wait for. Empty: up to 64 values from 1 to all workers, denser at small k.

    Raises:
        UsageError: no workers, a load below 1, or a k that is not from 1 to the number of workers.
    """
    workers, loads, ks = (_listed(*given) for given in (("workers", workers), ("loads", loads), ("ks", ks)))
    _check(workers, loads, ks)
    ks = ks or sorted({round(k) for k in np.geomspace(1, len(workers), MAX_KS).tolist()})
    return tuple(
        (k, samples, seconds)
        for samples in loads
        for k, seconds in zip(ks, mean_seconds(workers, samples, ks).tolist(), strict=True)
    )


def _listed(name: str, given: Iterable[Any]) -> list[Any]:
    try:
        one_by_one = iter(given)
    except TypeError:
        raise InvalidValue(name, given, "a list") from None
    return list(one_by_one)


def _check(workers: Sequence[Response], loads: Sequence[int], ks: Sequence[int]) -> None:
    models = all(hasattr(worker, "survival") and not isinstance(worker, type) for worker in workers)
    if not workers or not models:
        must = "a list of at least one model of response times, such as Scattered(delay, ...)"
        raise InvalidValue("workers", workers, must)
    if not loads or not all(_is_whole(load, 1, inf) for load in loads):
        raise InvalidValue("loads", loads, "a list of at least one whole number, each at least 1")
    if not all(_is_whole(k, 1, len(workers)) for k in ks):
        raise InvalidValue("ks", ks, f"whole numbers from 1 to {len(workers)}, the number of workers")


def _is_whole(value: Any, least: float, most: float) -> bool:
    return is_a(value, int) and least <= value <= most


def mean_seconds(workers: Sequence[Response], samples: int, ks: Sequence[int]) -> Numbers:
    """Return the mean seconds until k of the workers have finished, for each of `ks`, from 1 to all workers.

    All workers start a task of `samples` at time 0. This is mu_k of Kas Hanna et al. (ICASSP 2020), section 3, extended
    to different workers: the integral over time of the probability that fewer than k have finished.
    """
    kinds = Counter(workers)
    measured = [kind.taken(samples) for kind in kinds if isinstance(kind, Measured)]
    steps = len(measured) == len(kinds)
    seconds = _jumps(measured) if steps else np.linspace(0, 1, POINTS) ** 3 * _end(kinds, samples)
    survivals = [(kind.survival(seconds, samples), count) for kind, count in kinds.items()]
    found, rows = np.zeros(len(ks)), max(2, BLOCK // len(workers))
    for low in range(0, len(seconds) - 1, rows - 1):  # blocks share their end points
        part = slice(low, low + rows)
        fewer = _chance_of_fewer([(one[part], count) for one, count in survivals], ks)
        found += np.diff(seconds[part]) @ fewer[:-1] if steps else np.trapezoid(fewer, seconds[part], axis=0)
    return found


def _jumps(measured: Sequence[Numbers]) -> Numbers:
    """Return the possible finish times, starting with 0: all measured times, or a selection."""
    times = np.unique(np.concatenate([[0.0], *measured]))
    if len(times) <= MAX_JUMPS:
        return times
    ranks = np.geomspace(1, len(times), MAX_JUMPS // 2).round().astype(int)
    kept: Numbers = times[np.union1d(ranks - 1, len(times) - ranks)]
    return kept


def _end(kinds: Mapping[Response, int], samples: int) -> float:
    """Return a time when the expected number of unfinished workers is below `NEVER`."""
    end = 1e-9
    while _still_out(kinds, samples, end) > NEVER:
        end *= 2
    return end


def _still_out(kinds: Mapping[Response, int], samples: int, end: float) -> float:
    """Return the expected number of workers that have not finished at `end`."""
    seconds = np.linspace(0, end, FEW_POINTS)
    return sum(count * float(kind.survival(seconds, samples)[-1]) for kind, count in kinds.items())


def _chance_of_fewer(survivals: list[tuple[Numbers, int]], ks: Sequence[int]) -> Numbers:
    """Return the probability that fewer than k workers have finished, [times, ks]. Workers are independent.

    The transform of the number of finished workers is the product of the transforms of all workers (Hong, "On computing
    the distribution function for the Poisson binomial distribution", 2013).
    """
    counts = 1 + sum(count for _, count in survivals)
    turns = np.exp(-2j * np.pi / counts * np.arange(counts // 2 + 1))
    of_all = np.ones((len(survivals[0][0]), len(turns)), np.complex128)
    for survival, count in survivals:
        of_all *= _power(survival[:, None] + (1 - survival)[:, None] * turns, count)
    answered = np.fft.irfft(of_all, counts, axis=1)
    found: Numbers = np.cumsum(answered, 1)[:, np.asarray(ks) - 1]
    return found


def _power(base: Any, exponent: int) -> Any:
    """Return a power by repeated squaring. It is much faster than logarithms."""
    found = base if exponent % 2 else None
    while exponent := exponent // 2:
        base = base * base
        if exponent % 2:
            found = base if found is None else found * base
    return found
