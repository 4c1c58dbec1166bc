"""Buying policies: when a run adds on-demand machines to its spot machines so that it meets a deadline.

A policy is pure. It maps a `Situation` to a `Purchase`, and has no state: a resumed run needs only its situation.

Paper: Wu, Chiang, Mao, Yang, Friedman, Shenker, Stoica, "Can't Be Late: Optimizing Spot Instance Savings under
Deadlines" (NSDI 2024).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Protocol

from oddlot.core.support.validation import AboveZero, Must, check_settings


@dataclass(frozen=True, slots=True)
class Work:
    """The work that a run needs to reach its goal."""

    samples: float
    """Number of samples."""
    done: Callable[[], float]
    """Returns the number of merged samples."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of a run and of one zone when a policy decides."""

    elapsed_seconds: float
    """Seconds since the start of the run."""
    deadline_seconds: float
    """Seconds from the start of the run to the deadline."""
    seconds_needed: float
    """Seconds that the remaining work takes if every machine is bought on demand."""
    share_done: float
    """Finished share of the work, from 0 to 1."""
    changeover_seconds: float
    """Seconds of work that a machine loses when it is replaced."""
    count: int
    """Number of requested machines of the zone."""
    spot_ready: int = 0
    """Spot machines that work."""
    spot: int = 0
    """Spot machines that work or start."""
    on_demand: int = 0
    """On-demand machines that work or start."""
    takes_spot: bool = True
    """Whether the last decision ordered every spot machine that is available."""

    @property
    def slack_seconds(self) -> float:
        """Return the seconds that the run can lose and still meet the deadline on demand."""
        return self.deadline_seconds - self.elapsed_seconds - self.seconds_needed

    @property
    def missing(self) -> int:
        """Return the number of on-demand machines that complete the spot machines.

        A machine that is already there works until a spot machine is ready. A new one would not be ready before it.
        """
        return max(self.count - self.spot, min(self.on_demand, self.count - self.spot_ready))

    def share_due(self, after_seconds: float = 0.0) -> float:
        """Return the share of the work that an even pace to the deadline has finished `after_seconds` from now."""
        return min(1.0, (self.elapsed_seconds + after_seconds) / self.deadline_seconds)


@dataclass(frozen=True, slots=True)
class Purchase:
    """The machines that a policy wants in a zone."""

    on_demand: int
    """Number of on-demand machines. Others are given back."""
    takes_spot: bool = True
    """Whether every available spot machine is ordered. False: running spot machines are kept, and none is ordered."""


class Policy(Protocol):
    """Decides which machines to buy."""

    def decide(self, now: Situation) -> Purchase:
        """Return the machines that the zone should have."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """Spot machines only, until little slack is left. Then on-demand machines replace missing ones until the end.

    The baseline of the paper: its thrifty rule and its safety net. Spot machines are kept until they are preempted.
    """

    safety_changeovers: float = 2.0
    """Slack at which the safety net takes over, in changeovers."""

    def decide(self, now: Situation) -> Purchase:
        """Return no on-demand machine, or all missing ones."""
        if not now.takes_spot or now.slack_seconds <= self.safety_changeovers * now.changeover_seconds:
            return _safety_net(now)
        return Purchase(0)


@dataclass(frozen=True, slots=True)
class UniformProgress:
    """On-demand machines replace missing machines whenever the run is behind an even pace to its deadline.

    The four rules of the paper: uniform progress, taking risks (spot machines are always ordered), hysteresis and
    safety net.
    """

    safety_changeovers: float = 2.0
    """Slack at which the safety net takes over, in changeovers."""
    ahead_changeovers: float = 2.0
    """On-demand machines stay until the run is ahead of the pace by this time, in changeovers."""

    def decide(self, now: Situation) -> Purchase:
        """Return the missing machines if the run is behind the pace, or not yet ahead of it."""
        if not now.takes_spot or now.slack_seconds <= self.safety_changeovers * now.changeover_seconds:
            return _safety_net(now)
        ahead = self.ahead_changeovers * now.changeover_seconds if now.on_demand else 0.0
        return Purchase(now.missing if now.share_done < now.share_due(ahead) else 0)


@dataclass(frozen=True, slots=True)
class FillInMissing:
    """Spot machines only, while there is slack. Then on-demand machines fill in for missing ones, and are given back.

    An on-demand machine works until the spot machine that replaces it is ready. When almost no slack is left, no spot
    machine is ordered, and on-demand machines replace preempted ones until the end.

    It differs from the paper's uniform progress: waiting costs nothing, so the slack is used before money is spent.
    """

    fill_changeovers: float = 5.0
    """Slack below which on-demand machines fill in, in changeovers."""
    safety_changeovers: float = 1.2
    """Slack at which the safety net takes over, in changeovers."""
    hysteresis_changeovers: float = 1.0
    """Additional slack at which on-demand machines are given back without replacement, in changeovers."""

    def decide(self, now: Situation) -> Purchase:
        """Return the missing machines if the slack is used up."""
        slack, each = now.slack_seconds, now.changeover_seconds
        if slack <= (self.safety_changeovers if now.takes_spot else self.fill_changeovers) * each:
            return _safety_net(now)
        kept = self.hysteresis_changeovers if now.on_demand else 0.0
        return Purchase(now.missing if slack <= (self.fill_changeovers + kept) * each else 0)


def _safety_net(now: Situation) -> Purchase:
    """Return an on-demand machine for every machine without a spot machine, and order no spot machine."""
    return Purchase(now.missing, takes_spot=False)


POLICIES: Mapping[str, Policy] = {
    "fill_in": FillInMissing(),
    "uniform_progress": UniformProgress(),
    "greedy": Greedy(),
}
"""Policies by name. The first is the default."""


@dataclass(frozen=True, slots=True)
class Buying:
    """A deadline, and the policy that buys on-demand machines to meet it.

    Each spot zone can have an on-demand machine for each of its machines, at the on-demand price of its offer.
    """

    deadline_hours: AboveZero
    """Deadline, in hours from the start of the run."""
    policy: Annotated[str, Must("fill_in, uniform_progress or greedy", POLICIES.__contains__)] = "fill_in"
    """Name of the policy: `fill_in`, `uniform_progress` (the paper's) or `greedy` (the paper's baseline)."""
    epochs: AboveZero | None = None
    """Expected number of epochs of the run. Required if the goal has no epochs, samples or versions."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def deadline_seconds(self) -> float:
        """Return the deadline, in seconds from the start of the run."""
        return 3600 * self.deadline_hours

    def decide(self, now: Situation) -> Purchase:
        """Return the purchase of the policy."""
        return POLICIES[self.policy].decide(now)
