"""Stages of the fastest descent: the number of updates per round and the samples per task as the error falls."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf, log
from typing import NamedTuple

from oddlot.core.support.errors import InvalidValue, UsageError

HARDLY_LONGER = 1.1
"""Factor of the duration of a round that counts as hardly longer."""


class RoundKind(NamedTuple):
    """A kind of round."""

    k: int
    """Updates that a round waits for."""
    samples: int
    """Samples per task."""
    seconds: float
    """Mean duration of a round, in seconds."""

    @property
    def size(self) -> int:
        """Return the samples of a round."""
        return self.k * self.samples

    @property
    def floor(self) -> float:
        """Return the error that these rounds converge to, relative to rounds of one sample."""
        return 1 / self.size


class Stage(NamedTuple):
    """A kind of round, and the range of errors where it is the best."""

    choice: RoundKind
    """The kind of round."""
    until: float
    """Lower end of the range, relative to the final error of rounds of one sample. 0 for the last stage."""


def stages(choices: Iterable[RoundKind]) -> list[Stage]:
    """Return the choices that are the best at some error, from large to small errors.

    With the final error A of rounds of one sample, an error e falls at the rate (e - A / (k samples)) / seconds, up to
    a constant. For each choice this is a straight line over e, and the best choices form the upper envelope. A only
    scales the errors where the envelope changes from line to line. Theorem 1 of Kas Hanna et al. (ICASSP 2020) is the
    case of fixed samples. Adapting both is the idea of Egger, Kas Hanna, Bitar (2023); the stages are derived from the
    same bound. Raise UsageError if there is no choice, or an invalid choice.
    """
    given = list(choices)
    if not given or not all(one.k >= 1 and one.samples >= 1 and 0 < one.seconds < inf for one in given):
        raise UsageError(
            "choices must be at least one, each with k and samples of at least 1 and finite seconds above 0",
            "invalid_choices",
        )
    left = sorted(given, key=lambda choice: (choice.seconds, choice.floor))
    found, now = list[Stage](), left[0]
    while True:
        later = [
            (_crossing(now, one), one) for one in left if one.seconds > now.seconds and one.floor < now.floor
        ]
        until, following = max(later, default=(0.0, now), key=lambda pair: (pair[0], -pair[1].floor))
        if until <= now.floor:  # the error stops falling above `until`: only the lowest floor is left
            return [*found, Stage(now, 0.0)]
        found.append(Stage(now, until))
        now = following


def spaced(found: Sequence[Stage], gain: float) -> list[Stage]:
    """Return the stages that are far enough apart if the error is unknown.

    Keep the first stage, the last stage, and stages with at least `gain` times the samples of the previous stage per
    round. Leave out stages if a later stage has this number of samples and takes hardly longer.
    """
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


def _crossing(one: RoundKind, other: RoundKind) -> float:
    """Return the error where both choices reduce the error equally fast."""
    slopes = 1 / one.seconds - 1 / other.seconds
    return (one.floor / one.seconds - other.floor / other.seconds) / slopes


def switch_times(
    found: Sequence[Stage], a: float, error: float, contraction: float
) -> tuple[tuple[float, int], ...]:
    """Return the start time of each stage after the first stage, with its k: `times` for `AdaptiveK`.

    Use the first stage's k as `AdaptiveK(k=...)`. `error` is the initial error, and `a` is the final error of rounds of
    one sample: eta L sigma^2 / (2 c) in the paper (Kas Hanna et al., ICASSP 2020, theorem 1). Each round reduces the
    distance of the error to its floor by the share `contraction`, eta c. Raise UsageError if `contraction` is not
    between 0 and 1, or if `a` or `error` is not above 0.
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
