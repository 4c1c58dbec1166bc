"""How long a worker takes from being asked to having answered, by the number of samples that it is asked for."""

from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np

from oddlot.core.errors import UsageError
from oddlot.core.validation import AboveZero, FromZeroBelowOne, NotNegative, check_settings
from oddlot.machines.delay_models import Delay
from oddlot.timing.survival import Numbers, poisson_below, survival_of


class Response(Protocol):
    """A model of response times, each independent of the one before."""

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        """The chance that it takes longer than each of these times, which rise from 0."""


@dataclass(frozen=True, slots=True)
class Hypoexponential:
    """Communication and computation are independent and exponential, the latter's mean in proportion to the samples.

    Setting: Egger, Kas Hanna, Bitar, "Fast and Straggler-Tolerant Distributed SGD with Reduced Computation Load"
    (2023).
    """

    communication_seconds: AboveZero
    """mean"""
    seconds_per_sample: AboveZero
    """mean"""

    def __post_init__(self) -> None:
        check_settings(self)

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        """(q exp(-a t) - a exp(-q t)) / (q - a), in a form that holds for a = q too."""
        slow, fast = sorted((self.communication_seconds, self.seconds_per_sample * samples), reverse=True)
        gap = (1 / fast - 1 / slow) * seconds
        later = np.divide(-np.expm1(-gap), gap, out=np.ones_like(gap), where=gap > 0)
        found: Numbers = np.exp(-seconds / slow) * (1 + seconds / slow * later)
        return found


@dataclass(frozen=True, slots=True)
class Shifted:
    """The same, but the part `shift` of the mean computation is always there and the rest is exponential.

    The worker of Lee et al., "Speeding Up Distributed Machine Learning Using Codes" (2018).
    """

    communication_seconds: AboveZero
    seconds_per_sample: AboveZero
    shift: FromZeroBelowOne

    def __post_init__(self) -> None:
        check_settings(self)

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        rest = Hypoexponential(self.communication_seconds, self.seconds_per_sample * (1 - self.shift))
        since = seconds - self.shift * self.seconds_per_sample * samples
        return np.where(since > 0, rest.survival(np.maximum(since, 0.0), samples), 1.0)


@dataclass(frozen=True, slots=True)
class Erlang:
    """Each sample takes an exponential time of its own, independent of the others', and communication another one.

    Where a whole task's time scatters as the delay of that name says, however many samples it has, it is `Scattered`.
    """

    communication_seconds: AboveZero
    """mean"""
    seconds_per_sample: AboveZero
    """mean"""

    def __post_init__(self) -> None:
        check_settings(self)

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        """Computation's survival, and communication after it: S' = (computation's S - S) / communication_seconds,
        solved for straight lines between the given times."""
        computing = poisson_below(seconds / self.seconds_per_sample, samples)
        steps = np.diff(seconds) / self.communication_seconds
        fade = np.exp(-steps)
        late = 1 - np.divide(-np.expm1(-steps), steps, out=np.ones_like(steps), where=steps > 0)
        gained = computing[:-1] * (1 - fade) + np.diff(computing) * late
        found = np.ones_like(seconds)
        for at, (kept, more) in enumerate(zip(fade.tolist(), gained.tolist(), strict=True), 1):
            found[at] = kept * found[at - 1] + more
        return found


def _seconds(values: object) -> str:
    good = isinstance(values, tuple) and values and all(0 <= value < np.inf for value in values)
    return "" if good else "a tuple of at least one number, each finite and not negative"


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured, each answer as likely again: its communication, and its computation for each sample."""

    communication_seconds: Annotated[tuple[float, ...], _seconds]
    seconds_per_sample: Annotated[tuple[float, ...], _seconds]
    """of the same answers, in the same order"""

    def __post_init__(self) -> None:
        check_settings(self)
        if (one := len(self.communication_seconds)) != (other := len(self.seconds_per_sample)):
            told = f"communication and computation of {one} and {other} answers: both are of the same"
            raise UsageError(told, "different_lengths", communication=one, computation=other)

    def taken(self, samples: int) -> Numbers:
        """Seconds of each answer, the shortest first."""
        return np.sort(np.asarray(self.communication_seconds) + samples * np.asarray(self.seconds_per_sample))

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        taken = self.taken(samples)
        return 1 - np.searchsorted(taken, seconds, "right") / len(taken)


@dataclass(frozen=True, slots=True)
class Scattered:
    """A task takes as long as its samples do, scattered as the delay model says, such as one that was fitted
    (`oddlot.timing.delay_fitting`), and communication always the same."""

    delay: Delay
    seconds_per_sample: AboveZero
    """mean"""
    communication_seconds: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_settings(self)

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        since = (seconds - self.communication_seconds) / (self.seconds_per_sample * samples)
        return survival_of(self.delay, np.maximum(since, 0.0))
