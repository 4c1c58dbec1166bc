"""Learning rate schedules: a factor on every learning rate, as a function of the merged epochs.

A schedule counts samples that were merged or skipped, not steps or seconds. It therefore has the same meaning for every
strategy, engine and number of workers, and a resumed run continues it.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import cos, isfinite, pi
from numbers import Real
from typing import Annotated, Any

from oddlot.core.support.errors import InvalidValue, JobError, short
from oddlot.core.support.user_code import trace_of
from oddlot.core.support.validation import AboveZero, Must, NotNegative, check_settings

Schedule = Callable[[float], float]
"""`schedule(epochs)`: factor on every learning rate, a pure function of the epochs merged so far."""


def _rise(epochs: Any) -> bool:
    """Return whether these are increasing numbers above 0."""
    if not isinstance(epochs, tuple | list) or not epochs or not all(map(_is_number, epochs)):
        return False
    return all(before < after for before, after in pairwise((0, *epochs)))


Rising = Annotated[tuple[float, ...], Must("a list of numbers above 0, each above the one before", _rise)]
Share = Annotated[float, Must("from 0 to 1", lambda value: 0 <= value <= 1)]


@dataclass(frozen=True, slots=True)
class _Fall:
    """A warm-up from 0 to 1, then a decay to `floor`, then a constant factor. Subclasses set the shape of the decay."""

    epochs: AboveZero
    """Epochs until the factor is `floor`, including the warm-up."""
    warmup_epochs: NotNegative = 0.0
    """Epochs of a linear warm-up from 0 to 1."""
    floor: Share = 0.0
    """Final factor, from 0 to 1."""

    def __post_init__(self) -> None:
        check_settings(self)
        _check_warmup(self.warmup_epochs, self.epochs)

    def __call__(self, epochs: float) -> float:
        """Return the factor after a number of epochs."""
        if epochs < self.warmup_epochs:
            return epochs / self.warmup_epochs
        return self._fallen(min(1.0, (epochs - self.warmup_epochs) / (self.epochs - self.warmup_epochs)))

    def _fallen(self, way: float) -> float:
        """Return the factor at a share of the decay, from 0 to 1."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Cosine(_Fall):
    """Decay the learning rate along half a cosine from 1 to `floor`, as `torch.optim.lr_scheduler.CosineAnnealingLR`.

    Paper: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (ICLR 2017), equation 5,
    without restarts.
    """

    def _fallen(self, way: float) -> float:
        return self.floor + (1 - self.floor) * (1 + cos(pi * way)) / 2


@dataclass(frozen=True, slots=True)
class Linear(_Fall):
    """Decay the learning rate linearly from 1 to `floor`, as `torch.optim.lr_scheduler.LinearLR`."""

    def _fallen(self, way: float) -> float:
        return 1 + (self.floor - 1) * way


@dataclass(frozen=True, slots=True)
class MultiStep:
    """Multiply the learning rate by `factor` at each given epoch, as `torch.optim.lr_scheduler.MultiStepLR`."""

    at_epochs: Rising
    """Epochs when the learning rate changes, in ascending order."""
    factor: NotNegative = 0.1
    """Factor on the learning rate at each of these epochs."""
    warmup_epochs: NotNegative = 0.0
    """Epochs of a linear warm-up from 0 to 1."""

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "at_epochs", tuple(float(epoch) for epoch in self.at_epochs))
        _check_warmup(self.warmup_epochs, self.at_epochs[0], "the first of at_epochs,")

    def __call__(self, epochs: float) -> float:
        """Return the factor after a number of epochs."""
        if epochs < self.warmup_epochs:
            return epochs / self.warmup_epochs
        return float(self.factor ** bisect_right(self.at_epochs, epochs))


def factor_at(schedule: Schedule, epochs: float) -> float:
    """Return the schedule's factor. Raise JobError if it raises an exception or returns an invalid factor."""
    try:
        factor: Any = schedule(epochs)
    except Exception as error:
        reason = trace_of(error)
        message = f"lr_schedule failed at {epochs:g} epochs:\n{reason}"
        raise JobError(
            message, "user_code_failed", where="the schedule", epochs=epochs, reason=reason
        ) from error
    if not _is_number(factor) or factor < 0:
        raise JobError(
            f"lr_schedule returned {short(factor)} at {epochs:g} epochs: it must return a finite number of at least 0",
            "invalid_factor",
            given=factor,
            epochs=epochs,
        )
    return float(factor)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and isfinite(value)


def _check_warmup(warmup: float, end: float, what: str = "epochs =") -> None:
    if warmup >= end:
        raise InvalidValue("warmup_epochs", warmup, f"less than {what} {end:g}")
