"""Models of response times, from the assignment of a task to its update, by number of samples."""

from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np

from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import AboveZero, FromZeroBelowOne, NotNegative, check_settings
from oddlot.machines.delay_models import Delay
from oddlot.timing.survival import Numbers, poisson_below, survival_of


class Response(Protocol):
    """A model of independent response times."""

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        """Return the probability that a task takes longer than each of `seconds`. They ascend from 0."""


@dataclass(frozen=True, slots=True)
class Hypoexponential:
    """Independent, exponentially distributed communication and computation times.

    The mean computation time is proportional to the samples. Source: Egger, Kas Hanna, Bitar, "Fast and
    Straggler-Tolerant Distributed SGD with Reduced Computation Load" (2023).
    """

    communication_seconds: AboveZero
    """Mean communication time of a task, in seconds."""
    seconds_per_sample: AboveZero
    """Mean computation time of a sample, in seconds."""

    def __post_init__(self) -> None:
        check_settings(self)

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        """Return (q exp(-a t) - a exp(-q t)) / (q - a), in a form that also holds for a = q."""
        slow, fast = sorted((self.communication_seconds, self.seconds_per_sample * samples), reverse=True)
        gap = (1 / fast - 1 / slow) * seconds
        later = np.divide(-np.expm1(-gap), gap, out=np.ones_like(gap), where=gap > 0)
        found: Numbers = np.exp(-seconds / slow) * (1 + seconds / slow * later)
        return found


@dataclass(frozen=True, slots=True)
class Shifted:
    """Like `Hypoexponential`, with a constant part of the computation time.

    The worker model of Lee et al., "Speeding Up Distributed Machine Learning Using Codes" (2018).
    """

    communication_seconds: AboveZero
    """Mean communication time of a task, in seconds."""
    seconds_per_sample: AboveZero
    """Mean computation time of a sample, in seconds."""
    shift: FromZeroBelowOne
    """Constant part of the mean computation time, at least 0 and below 1."""

    def __post_init__(self) -> None:
        check_settings(self)

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        """Return the probability that a task takes longer than each of `seconds`."""
        rest = Hypoexponential(self.communication_seconds, self.seconds_per_sample * (1 - self.shift))
        since = seconds - self.shift * self.seconds_per_sample * samples
        return np.where(since > 0, rest.survival(np.maximum(since, 0.0), samples), 1.0)


@dataclass(frozen=True, slots=True)
class ExponentialSamples:
    """Independent, exponentially distributed times of each sample and of the communication.

    If the time of a complete task is Erlang-distributed for any number of samples, use `Scattered` instead.
    """

    communication_seconds: AboveZero
    """Mean communication time of a task, in seconds."""
    seconds_per_sample: AboveZero
    """Mean computation time of a sample, in seconds."""

    def __post_init__(self) -> None:
        check_settings(self)

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        """Return the survival function of computation plus communication.

        It solves S' = (S of the computation - S) / communication_seconds, with linear interpolation between the times.
        """
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
    """Measured times, each equally likely."""

    communication_seconds: Annotated[tuple[float, ...], _seconds]
    """Measured communication times of tasks, in seconds."""
    seconds_per_sample: Annotated[tuple[float, ...], _seconds]
    """Measured computation times per sample of the same tasks, in the same order."""

    def __post_init__(self) -> None:
        check_settings(self)
        if (one := len(self.communication_seconds)) != (other := len(self.seconds_per_sample)):
            message = f"{one} communication times and {other} computation times: give both for each task"
            raise UsageError(message, "different_lengths", communication=one, computation=other)

    def taken(self, samples: int) -> Numbers:
        """Return the times of tasks with `samples` samples, shortest first."""
        return np.sort(np.asarray(self.communication_seconds) + samples * np.asarray(self.seconds_per_sample))

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        """Return the probability that a task takes longer than each of `seconds`."""
        taken = self.taken(samples)
        return 1 - np.searchsorted(taken, seconds, "right") / len(taken)


@dataclass(frozen=True, slots=True)
class Scattered:
    """A computation time proportional to the samples and to a random factor, plus a constant communication time.

    `oddlot.timing.delay_fitting` fits the distribution of the factor to measured times.
    """

    delay: Delay
    """Distribution of the factor."""
    seconds_per_sample: AboveZero
    """Mean computation time of a sample, in seconds."""
    communication_seconds: NotNegative = 0.0
    """Communication time of a task, in seconds."""

    def __post_init__(self) -> None:
        check_settings(self)

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        """Return the probability that a task takes longer than each of `seconds`."""
        since = (seconds - self.communication_seconds) / (self.seconds_per_sample * samples)
        return survival_of(self.delay, np.maximum(since, 0.0))
