"""A machine as the simulator sees it. All values carry their units in their names."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random

from oddlot.core.checks import above_zero, check_hints, not_negative
from oddlot.core.errors import UsageError
from oddlot.machines.delays import Delay, Deterministic, Exponential


@dataclass(frozen=True, slots=True)
class Link:
    """The way between a machine and the hub, the same in both directions."""

    megabits_per_second: float = inf
    latency_milliseconds: float = 0.0

    def __post_init__(self) -> None:
        check_hints(self)
        if not self.megabits_per_second > 0:
            raise UsageError(f"megabits_per_second = {self.megabits_per_second} must be above 0")
        not_negative(latency_milliseconds=self.latency_milliseconds)

    def seconds(self, size: int) -> float:
        """How long `size` bytes take, one way."""
        return self.latency_milliseconds / 1e3 + size * 8 / (self.megabits_per_second * 1e6)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long a machine stays, each time that it comes."""

    mean_seconds: float
    delay: Delay = Exponential()  # noqa: RUF009 - frozen, and without state

    def __post_init__(self) -> None:
        check_hints(self)
        above_zero(mean_seconds=self.mean_seconds)

    def start(self, rng: Random) -> Callable[[], float]:
        """A stream of lifetimes in seconds."""
        relative = self.delay.start(rng)
        return lambda: self.mean_seconds * relative()


@dataclass(frozen=True, slots=True)
class Machine:
    """One worker's machine: a task of n samples computes for n x seconds_per_sample x a time from `delay`."""

    name: str
    seconds_per_sample: float = 0.001
    delay: Delay = Deterministic()  # noqa: RUF009 - frozen, and without state
    link: Link = Link()
    dollars_per_hour: float = 0.0
    lifetime: Lifetime | None = None
    """None: it stays"""
    seconds_to_return: float | None = None
    """from the end of a lifetime to the next; None: it never returns"""
    joins_at_seconds: float = 0.0

    def __post_init__(self) -> None:
        check_hints(self)
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.name):
            # A node's later lives are `name.2`, `name.3`, ..., and its tasks `name:17`.
            raise UsageError(f"name = {self.name!r} must be of letters, digits, - and _")
        above_zero(seconds_per_sample=self.seconds_per_sample)
        not_negative(dollars_per_hour=self.dollars_per_hour)
        not_negative(joins_at_seconds=self.joins_at_seconds)
        if self.seconds_to_return is not None:
            not_negative(seconds_to_return=self.seconds_to_return)
            if self.lifetime is None:
                raise UsageError(
                    f"{self.name} has seconds_to_return, but no lifetime after which to return: add one"
                )
