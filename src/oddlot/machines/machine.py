"""Simulated machines: their speed, network link, lifetime and price. Field names include the units."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Annotated

from oddlot.core.support.validation import AboveZero, NotNegative, check_settings
from oddlot.machines.delay_models import Delay, Deterministic, Exponential


def _above_zero_or_inf(value: float) -> str:
    return "" if value > 0 else "above 0"


def node_name(name: str) -> str:
    """Return the rule that the name of a machine violates; an empty string if it is valid."""
    # The machine's later workers are `name.2`, `name.3`, ..., and its tasks `name:17`.
    return "" if re.fullmatch(r"[A-Za-z0-9_-]+", name) else "of letters, digits, - and _"


@dataclass(frozen=True, slots=True)
class Link:
    """The network link between a machine and the hub. Both directions are the same."""

    megabits_per_second: Annotated[float, _above_zero_or_inf] = inf
    """Bandwidth, in megabits per second."""
    latency_milliseconds: NotNegative = 0.0
    """One-way latency, in milliseconds."""
    delay: Delay = Deterministic()  # noqa: RUF009 - frozen, and without state
    """Distribution of transfer times, relative to their mean. A task has one factor for both directions."""

    def __post_init__(self) -> None:
        check_settings(self)

    def seconds(self, size: int) -> float:
        """Return the mean transfer time of `size` bytes, one way, in seconds."""
        return self.latency_milliseconds / 1e3 + size * 8 / (self.megabits_per_second * 1e6)


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The time from a machine's start to its preemption. It is drawn for each start."""

    mean_seconds: AboveZero
    """Mean lifetime, in seconds."""
    delay: Delay = Exponential()  # noqa: RUF009 - frozen, and without state
    """Distribution of lifetimes, relative to their mean."""

    def __post_init__(self) -> None:
        check_settings(self)

    def start(self, rng: Random) -> Callable[[], float]:
        """Return a function that returns a lifetime at each call, in seconds."""
        relative = self.delay.start(rng)
        return lambda: self.mean_seconds * relative()


@dataclass(frozen=True, slots=True)
class Machine:
    """A simulated machine that runs one worker.

    A task of n samples computes for n x `seconds_per_sample` x a factor from `delay`. When a machine is lost and
    returns, its worker has the next name: `NAME.2`, `NAME.3`, ...
    """

    name: Annotated[str, node_name]
    """Name of the machine and of its first worker: letters, digits, `-` and `_`."""
    seconds_per_sample: AboveZero = 0.001
    """Mean computation time of one sample, in seconds."""
    delay: Delay = Deterministic()  # noqa: RUF009 - frozen, and without state
    """Distribution of computation times, relative to their mean."""
    link: Link = Link()
    """Network link to the hub."""
    dollars_per_hour: NotNegative = 0.0
    """Price, in dollars per hour."""
    lifetime: Lifetime | None = None
    """Time from each start to a preemption. If None, the machine is not preempted."""
    seconds_to_return: NotNegative | None = None
    """Seconds from a loss or a preemption until the machine is started again. If None, never or, in a zone,
    immediately."""
    joins_at_seconds: NotNegative = 0.0
    """Time of the first start, in seconds from the start of the run."""
    seconds_to_start: NotNegative = 0.0
    """Seconds from each start until the machine is ready for a task. They are billed."""
    notice_seconds: NotNegative = 0.0
    """Seconds of notice before a preemption. The worker hands over the finished part of its task. 0: no notice."""
    noticed_after_seconds: NotNegative = 0.0
    """Seconds until a lost machine is detected, counted from its last message. 0: immediately."""
    zone: str = ""
    """Name of the zone that the machine is in. Empty: none. Only a `Zone` sets it."""
    stops_at_once: bool = False
    """Whether a cancelled task stops immediately, as many papers assume. False: the message takes its time on the link,
    and the worker finishes its minibatch."""

    def __post_init__(self) -> None:
        check_settings(self)
