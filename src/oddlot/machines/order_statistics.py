"""How long the fastest k of n workers take: means of the order statistics of their response times."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from oddlot.machines.response import Numbers, Response

POINTS, FEW_POINTS = 2_000, 200
"""at which survival functions are integrated, closer to each other where times are short; and to find their end"""
NEVER = 1e-9
"""answers that come later still, of all workers', so few that they count for nothing"""
MOST_KS = 64
"""that are looked at unless said"""
BLOCK = 1 << 22
"""chances that are held at once"""


def rounds_of(
    workers: Sequence[Response], loads: Sequence[int], ks: Sequence[int] = ()
) -> tuple[tuple[int, int, float], ...]:
    """Rows of (k, samples, mean seconds): of rounds that wait for k of the workers, each with so many samples.

    For every load and every one of `ks`, or some from 1 to all workers, the closer to each other the fewer.
    """
    ks = ks or sorted({round(k) for k in np.geomspace(1, len(workers), MOST_KS).tolist()})
    return tuple(
        (k, samples, seconds)
        for samples in loads
        for k, seconds in zip(ks, mean_seconds(workers, samples, ks).tolist(), strict=True)
    )


def mean_seconds(workers: Sequence[Response], samples: int, ks: Sequence[int]) -> Numbers:
    """Mean seconds until k of the workers have answered, for each of `ks`, which are from 1 to all of them.

    Each worker is asked at 0 for so many samples. mu_k of Kas Hanna et al. (ICASSP 2020), section 3, also for workers
    who are not alike: the integral, over time, of the chance that fewer than k have answered.
    """
    kinds = Counter(workers)
    seconds = np.linspace(0, 1, POINTS) ** 3 * _end(kinds, samples)
    survivals = [(kind.survival(seconds, samples), count) for kind, count in kinds.items()]
    found, rows = np.zeros(len(ks)), max(2, BLOCK // len(workers))
    for low in range(0, POINTS - 1, rows - 1):  # the last point of a block is the first of the next one
        part = slice(low, low + rows)
        fewer = _chance_of_fewer([(one[part], count) for one, count in survivals], ks)
        found += np.trapezoid(fewer, seconds[part], axis=0)
    return found


def _end(kinds: Mapping[Response, int], samples: int) -> float:
    """When all have answered, as good as surely."""
    end = 1e-9
    while _still_out(kinds, samples, end) > NEVER:
        end *= 2
    return end


def _still_out(kinds: Mapping[Response, int], samples: int, end: float) -> float:
    """How many are expected not to have answered by then."""
    seconds = np.linspace(0, end, FEW_POINTS)
    return sum(count * float(kind.survival(seconds, samples)[-1]) for kind, count in kinds.items())


def _chance_of_fewer(survivals: list[tuple[Numbers, int]], ks: Sequence[int]) -> Numbers:
    """That fewer than k have answered, [times, ks]: workers are independent, and so many of each kind alike."""
    answered = np.ones((len(survivals[0][0]), 1))
    for survival, count in survivals:
        answered = _sum(answered, _binomial(1 - survival, survival, count))
    return np.cumsum(answered, 1)[:, np.asarray(ks) - 1]


def _binomial(chance: Numbers, other: Numbers, count: int) -> Numbers:
    """Of how many of `count` have answered, [times, count + 1]."""
    if count == 1:
        return np.stack([other, chance], 1)
    of = np.arange(count + 1)
    ways = np.concatenate([[0.0], np.cumsum(np.log(of[:0:-1]) - np.log(of[1:]))])  # log of count over i
    tiny = np.finfo(np.float64).tiny
    answered, out = (np.log(np.maximum(one, tiny))[:, None] for one in (chance, other))
    found: Numbers = np.exp(ways + of * answered + (count - of) * out)
    return found


def _sum(one: Numbers, other: Numbers) -> Numbers:
    """The distribution of the sum of two independent counts, for each time."""
    small, large = sorted((one, other), key=lambda counts: counts.shape[1])
    found = np.zeros((len(one), one.shape[1] + other.shape[1] - 1))
    for more in range(small.shape[1]):
        found[:, more : more + large.shape[1]] += small[:, more, None] * large
    return found
