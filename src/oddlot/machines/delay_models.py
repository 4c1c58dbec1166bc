"""Delay models: distributions of a machine's times, relative to their mean.

A model is pure data. `start(rng)` returns a function, and each call of it returns one more factor with mean 1.
The factors of a `Trace` are used as they are. Each stream draws from its own `rng`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import inf, log, sqrt
from random import Random
from typing import Annotated

from oddlot.core.support.validation import AtLeastOne, FromZeroBelowOne, Must, check_settings

Times = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Deterministic:
    """Every time is the mean."""

    def start(self, rng: Random) -> Times:
        """Return a function that always returns 1."""
        return lambda: 1.0


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponentially distributed times (memoryless): the usual model of a machine's lifetime."""

    def start(self, rng: Random) -> Times:
        """Return a function that draws a factor with mean 1 at each call."""
        return lambda: rng.expovariate(1.0)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormally distributed times: occasionally much slower than the mean."""

    cv: Annotated[float, Must("from 0 to 1,000", lambda cv: 0 <= cv <= 1_000)]
    """Coefficient of variation: standard deviation divided by the mean."""

    def __post_init__(self) -> None:
        check_settings(self)

    def start(self, rng: Random) -> Times:
        """Return a function that draws a factor with mean 1 at each call."""
        variance = log(1 + self.cv**2)  # of the logarithm
        return lambda: rng.lognormvariate(-variance / 2, sqrt(variance))


@dataclass(frozen=True, slots=True)
class Erlang:
    """Erlang-distributed times: the sum of `shape` exponential stages."""

    shape: AtLeastOne
    """Number of stages. The standard deviation is 1/sqrt(shape) of the mean."""

    def __post_init__(self) -> None:
        check_settings(self)

    def start(self, rng: Random) -> Times:
        """Return a function that draws a factor with mean 1 at each call."""
        return lambda: rng.gammavariate(self.shape, 1 / self.shape)


@dataclass(frozen=True, slots=True)
class ShiftedExponential:
    """A constant part plus an exponentially distributed part.

    The worker model of Lee et al., "Speeding Up Distributed Machine Learning Using Codes" (2018).
    """

    shift: FromZeroBelowOne
    """Constant part of the mean, at least 0 and below 1. The standard deviation is 1 - shift of the mean."""

    def __post_init__(self) -> None:
        check_settings(self)

    def start(self, rng: Random) -> Times:
        """Return a function that draws a factor with mean 1 at each call."""
        return lambda: self.shift + (1 - self.shift) * rng.expovariate(1.0)


def _multipliers(values: object) -> str:
    if not isinstance(values, tuple | list) or not values:
        return "a list of at least one number"
    for number, value in enumerate(values, 1):
        if not (isinstance(value, int | float) and 0 < value < inf):
            return f"a list of numbers, each finite and above 0 (number {number} is {value})"
    return ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded times, replayed in their order and repeated. Each machine starts at a random position.

    The multipliers are not normalized: with a mean of 1.5, times are 1.5 times the machine's mean time.
    """

    multipliers: Annotated[tuple[float, ...], _multipliers]
    """Factors of the mean time, each above 0."""

    def __post_init__(self) -> None:
        check_settings(self)

    def start(self, rng: Random) -> Times:
        """Return a function that returns the next multiplier at each call, from a random position on."""
        places = count(rng.randrange(len(self.multipliers)))
        return lambda: self.multipliers[next(places) % len(self.multipliers)]


Delay = Deterministic | Exponential | Lognormal | Erlang | ShiftedExponential | Trace
