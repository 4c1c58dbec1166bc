"""A machine as the simulator sees it. All values carry their units in their names."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Annotated

from oddlot.core.validation import AboveZero, NotNegative, check_settings
from oddlot.machines.delay_models import Delay, Deterministic, Exponential


def _above_zero_or_inf(value: float) -> str:
    return "" if value > 0 else "above 0"


def node_name(name: str) -> str:
    """A check: what a machine may be called."""
    # A node's later lives are `name.2`, `name.3`, ..., and its tasks `name:17`.
    return "" if re.fullmatch(r"[A-Za-z0-9_-]+", name) else "of letters, digits, - and _"


@dataclass(frozen=True, slots=True)
class Link:
    """The way between a machine and the hub, the same in both directions."""

    megabits_per_second: Annotated[float, _above_zero_or_inf] = inf
    latency_milliseconds: NotNegative = 0.0
    delay: Delay = Deterministic()  # noqa: RUF009 - frozen, and without state
    """how what the two ways of a task take scatters: by the same factor, drawn anew for each task"""

    def __post_init__(self) -> None:
        check_settings(self)

    def seconds(self, size: int) -> float:
        """How long `size` bytes take on average, one way."""
        return self.latency_milliseconds / 1e3 + size * 8 / (self.megabits_per_second * 1e6)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long a machine stays, each time that it comes."""

    mean_seconds: AboveZero
    delay: Delay = Exponential()  # noqa: RUF009 - frozen, and without state

    def __post_init__(self) -> None:
        check_settings(self)

    def start(self, rng: Random) -> Callable[[], float]:
        """A stream of lifetimes in seconds."""
        relative = self.delay.start(rng)
        return lambda: self.mean_seconds * relative()


@dataclass(frozen=True, slots=True)
class Machine:
    """One worker's machine: a task of n samples computes for n x seconds_per_sample x a time from `delay`.

    It comes at `joins_at_seconds`, stays for its `lifetime` (None: for good, but for what `chaos` does), and is there
    again `seconds_to_return` later (None: never) under the next name, `NAME.2`, `NAME.3`, ...
    """

    name: Annotated[str, node_name]
    seconds_per_sample: AboveZero = 0.001
    delay: Delay = Deterministic()  # noqa: RUF009 - frozen, and without state
    link: Link = Link()
    dollars_per_hour: NotNegative = 0.0
    lifetime: Lifetime | None = None
    """None: it stays"""
    seconds_to_return: NotNegative | None = None
    """from the end of a life, whatever ended it, to the next; None: it never returns"""
    joins_at_seconds: NotNegative = 0.0
    seconds_to_start: NotNegative = 0.0
    """each time that it comes, until it is ready for its first task; they are paid for"""
    notice_seconds: NotNegative = 0.0
    """before a lifetime's end or a preemption, in which it hands over what it has done; 0: it goes without a word"""
    noticed_after_seconds: NotNegative = 0.0
    """a loss is noticed so long after the machine was last given or brought anything; 0: at once"""
    zone: str = ""
    """where it was bought; empty: nowhere in particular"""
    stops_at_once: bool = False
    """a task that is cancelled ends there and then, on its way too, as papers assume; false: word has to reach the
    machine, which ends its minibatch"""

    def __post_init__(self) -> None:
        check_settings(self)
