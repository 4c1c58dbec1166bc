"""Delay models: how one machine's times scatter around their mean.

A model is pure data. `start(rng)` makes a stream: each call of what it returns is one more time, relative to
the mean of 1 (a `Trace` is taken as it is). Streams draw from their own `rng` and share nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import inf, log, sqrt
from random import Random
from typing import Annotated

from oddlot.core.validation import AtLeastOne, FromZeroBelowOne, Must, check_settings

Times = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Deterministic:
    """Always the mean."""

    def start(self, rng: Random) -> Times:
        return lambda: 1.0


@dataclass(frozen=True, slots=True)
class Exponential:
    """Memoryless: standard deviation 1. The usual model of a machine's lifetime."""

    def start(self, rng: Random) -> Times:
        return lambda: rng.expovariate(1.0)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Now and then much slower; `cv` is the standard deviation over the mean."""

    cv: Annotated[float, Must("from 0 to 1,000", lambda cv: 0 <= cv <= 1_000)]

    def __post_init__(self) -> None:
        check_settings(self)

    def start(self, rng: Random) -> Times:
        variance = log(1 + self.cv**2)  # of the logarithm
        return lambda: rng.lognormvariate(-variance / 2, sqrt(variance))


@dataclass(frozen=True, slots=True)
class Erlang:
    """The sum of `shape` exponential stages: standard deviation 1/sqrt(shape)."""

    shape: AtLeastOne

    def __post_init__(self) -> None:
        check_settings(self)

    def start(self, rng: Random) -> Times:
        return lambda: rng.gammavariate(self.shape, 1 / self.shape)


@dataclass(frozen=True, slots=True)
class ShiftedExponential:
    """The part `shift` of the mean always, the rest exponential: standard deviation 1 - shift.

    The worker of Lee et al., Speeding Up Distributed Machine Learning Using Codes (2018).
    """

    shift: FromZeroBelowOne

    def __post_init__(self) -> None:
        check_settings(self)

    def start(self, rng: Random) -> Times:
        return lambda: self.shift + (1 - self.shift) * rng.expovariate(1.0)


def _multipliers(values: object) -> str:
    if not isinstance(values, tuple | list) or not values:
        return "a list of at least one number"
    for number, value in enumerate(values, 1):
        if not (isinstance(value, int | float) and 0 < value < inf):
            return f"finite and above 0, each: number {number} is {value}"
    return ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Measured multipliers in their order, over and over, each stream from its own random place in them."""

    multipliers: Annotated[tuple[float, ...], _multipliers]

    def __post_init__(self) -> None:
        check_settings(self)

    def start(self, rng: Random) -> Times:
        places = count(rng.randrange(len(self.multipliers)))
        return lambda: self.multipliers[next(places) % len(self.multipliers)]


Delay = Deterministic | Exponential | Lognormal | Erlang | ShiftedExponential | Trace
