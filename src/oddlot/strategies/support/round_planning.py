"""How many workers to wait for and how much to give each, as the error falls: the stages of the fastest descent."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf, log
from typing import NamedTuple

from oddlot.core.errors import InvalidValue, UsageError

HARDLY_LONGER = 1.1
"""times the seconds of a round"""


class Choice(NamedTuple):
    """A way to have rounds."""

    k: int
    """results that a round waits for"""
    samples: int
    """that each worker is given"""
    seconds: float
    """of a round, on average"""

    @property
    def size(self) -> int:
        """Samples of a round."""
        return self.k * self.samples

    @property
    def floor(self) -> float:
        """Where the error would end, in units of `a`, which is that of rounds of one sample."""
        return 1 / self.size


class Stage(NamedTuple):
    """A choice, and down to which error it is the best one, in units of `a`; 0 for the last one."""

    choice: Choice
    until: float


def stages(choices: Iterable[Choice]) -> list[Stage]:
    """The choices that are the best at some error, from large errors to small ones.

    With the floor A of rounds of one sample an error e falls at the rate (e - A / (k samples)) / seconds, up to a
    constant. This is a straight line over e for each choice, and the best ones are their upper envelope, which does not
    depend on A but for the errors at which it changes from line to line. Theorem 1 of Kas Hanna et al. (ICASSP 2020) is
    the case in which the samples are given. That both adapt is the idea of Egger, Kas Hanna, Bitar (2023); the stages
    are derived here from the same bound. UsageError: there is no choice, or one that cannot be.
    """
    given = list(choices)
    if not given or not all(one.k >= 1 and one.samples >= 1 and 0 < one.seconds < inf for one in given):
        raise UsageError(
            "choices are of k and samples, at least 1, and of seconds above 0: there is none, or another",
            "invalid_choices",
        )
    left = sorted(given, key=lambda choice: (choice.seconds, choice.floor))
    found, now = list[Stage](), left[0]
    while True:
        later = [
            (_crossing(now, one), one) for one in left if one.seconds > now.seconds and one.floor < now.floor
        ]
        until, following = max(later, default=(0.0, now), key=lambda pair: (pair[0], -pair[1].floor))
        if until <= now.floor:  # where it has stopped to fall already, no choice is left but the lowest floor
            return [*found, Stage(now, 0.0)]
        found.append(Stage(now, until))
        now = following


def spaced(found: Sequence[Stage], gain: float) -> list[Stage]:
    """Those that make a difference to who does not know the error: the first one, those whose rounds have `gain` times
    the samples of the one before, or more, and the last one; without those beside which a later one has so many for
    hardly more seconds."""
    worth_it = [
        stage
        for at, stage in enumerate(found)
        if not any(
            later.choice.size >= gain * stage.choice.size
            and later.choice.seconds <= HARDLY_LONGER * stage.choice.seconds
            for later in found[at + 1 :]
        )
    ]
    kept = worth_it[:1]
    for stage in worth_it[1:]:
        if stage.choice.size >= gain * kept[-1].choice.size or stage is worth_it[-1]:
            kept.append(stage)
    return kept


def _crossing(one: Choice, other: Choice) -> float:
    """The error at which both fall as fast."""
    slopes = 1 / one.seconds - 1 / other.seconds
    return (one.floor / one.seconds - other.floor / other.seconds) / slopes


def switch_times(
    found: Sequence[Stage], a: float, error: float, contraction: float
) -> tuple[tuple[float, int], ...]:
    """When each stage but the first one begins, from this error on, and its k: `times` of `AdaptiveK`, if the first
    stage's k is its `k`.

    `a` is the floor of rounds of one sample, eta L sigma^2 / (2 c) in the paper (Kas Hanna et al., ICASSP 2020, theorem
    1); a round takes the part `contraction`, eta c, of what the error is above its floor. UsageError: that is no part,
    or the others are not above 0.
    """
    if not 0 < contraction < 1:
        raise InvalidValue("contraction", contraction, "above 0 and below 1")
    for name, value in (("a", a), ("error", error)):
        if not 0 < value < inf:
            raise InvalidValue(name, value, "finite and above 0")
    times, now = list[tuple[float, int]](), 0.0
    for stage, following in pairwise(found):
        if error > a * stage.until:  # which is above the stage's floor
            gone = (error - a * stage.choice.floor) / (a * stage.until - a * stage.choice.floor)
            now += stage.choice.seconds / -log(1 - contraction) * log(gone)
            error = a * stage.until
        times.append((now, following.choice.k))
    return tuple(times)
