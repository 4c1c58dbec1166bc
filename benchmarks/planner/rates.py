"""The fastest learning rate of a grid."""

from collections.abc import Callable
from math import inf

MAX_RATES = 10


def best_of_grid(first: float, measure: Callable[[float, float], float]) -> tuple[float, float]:
    """Return the fastest rate of a grid in factors of 2 around `first`, and its time.

    The grid grows until the rate is inside. While no rate reaches the goal, it grows towards smaller ones.

    Args:
        first: Rate to start from.
        measure: Function of a rate and the time of the fastest one so far. It returns the time to the goal, or infinity
            if that is longer.
    """
    best, times = first, dict[float, float]()
    while len(times) < MAX_RATES and not {best / 2, best, best * 2} <= times.keys():
        for rate in (best, best / 2, best * 2):
            if rate not in times:
                times[rate] = measure(rate, min(times.values(), default=inf))
        best = min(times, key=lambda rate: (times[rate], rate))
    return best, times[best]
