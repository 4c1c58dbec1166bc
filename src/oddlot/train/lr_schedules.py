"""Schedules: a factor on every learning rate, as a function of the epochs that have reached the model.

A schedule counts samples that were merged or skipped, never steps or seconds. So it means the same whatever the
strategy, the engine and the number of workers, and a resumed run needs nothing but its books to go on with it.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import cos, isfinite, pi
from numbers import Real
from typing import Annotated, Any

from oddlot.core.errors import InvalidValue, JobError, short
from oddlot.core.user_code import trace_of
from oddlot.core.validation import AboveZero, Must, NotNegative, check_settings

Schedule = Callable[[float], float]
"""`schedule(epochs)`, a pure function of the epochs merged so far: what every learning rate is multiplied with."""


def _rise(epochs: Any) -> bool:
    """Numbers above 0, each larger than the one before."""
    if not isinstance(epochs, tuple | list) or not epochs or not all(map(_is_number, epochs)):
        return False
    return all(before < after for before, after in pairwise((0, *epochs)))


Rising = Annotated[tuple[float, ...], Must("a list of numbers above 0, each above the one before", _rise)]
Share = Annotated[float, Must("from 0 to 1", lambda value: 0 <= value <= 1)]


@dataclass(frozen=True, slots=True)
class _Fall:
    """Down from 1 to `floor`, where it stays; the shape is the schedules' own."""

    epochs: AboveZero
    """when it has come down, the warm-up included"""
    warmup_epochs: NotNegative = 0.0
    """of a straight rise from 0 to 1 at the beginning"""
    floor: Share = 0.0
    """the least factor after the warm-up"""

    def __post_init__(self) -> None:
        check_settings(self)
        _check_warmup(self.warmup_epochs, self.epochs)

    def __call__(self, epochs: float) -> float:
        """The factor after so many epochs."""
        if epochs < self.warmup_epochs:
            return epochs / self.warmup_epochs
        return self._fallen(min(1.0, (epochs - self.warmup_epochs) / (self.epochs - self.warmup_epochs)))

    def _fallen(self, way: float) -> float:
        """The factor after so much of the way, from 0 to 1."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Cosine(_Fall):
    """Down from 1 to `floor` along half a cosine; then it stays there.

    Paper: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (ICLR 2017), equation 5,
    without restarts; `torch.optim.lr_scheduler.CosineAnnealingLR`.
    """

    def _fallen(self, way: float) -> float:
        return self.floor + (1 - self.floor) * (1 + cos(pi * way)) / 2


@dataclass(frozen=True, slots=True)
class Linear(_Fall):
    """Down from 1 to `floor` in a straight line; then it stays there. `torch.optim.lr_scheduler.LinearLR`."""

    def _fallen(self, way: float) -> float:
        return 1 + (self.floor - 1) * way


@dataclass(frozen=True, slots=True)
class MultiStep:
    """Times `factor` at each of some epochs. `torch.optim.lr_scheduler.MultiStepLR`."""

    at_epochs: Rising
    """when"""
    factor: NotNegative = 0.1
    """what the learning rate is multiplied with each time"""
    warmup_epochs: NotNegative = 0.0
    """of a straight rise from 0 to 1 at the beginning"""

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "at_epochs", tuple(float(epoch) for epoch in self.at_epochs))
        _check_warmup(self.warmup_epochs, self.at_epochs[0], "the first of at_epochs,")

    def __call__(self, epochs: float) -> float:
        """The factor after so many epochs."""
        if epochs < self.warmup_epochs:
            return epochs / self.warmup_epochs
        return float(self.factor ** bisect_right(self.at_epochs, epochs))


def factor_at(schedule: Schedule, epochs: float) -> float:
    """What the schedule says. JobError: it fails, or says what no learning rate can be multiplied with."""
    try:
        factor: Any = schedule(epochs)
    except Exception as error:
        reason = trace_of(error)
        told = f"the schedule failed at {epochs:g} epochs:\n{reason}"
        raise JobError(
            told, "user_code_failed", where="the schedule", epochs=epochs, reason=reason
        ) from error
    if not _is_number(factor) or factor < 0:
        raise JobError(
            f"the schedule gave {short(factor)} at {epochs:g} epochs: it must return a number, finite and not negative",
            "invalid_factor",
            given=factor,
            epochs=epochs,
        )
    return float(factor)


def by_samples(schedule: Schedule | None, size: int) -> Callable[[int], float] | None:
    """The factor as a function of the samples merged so far, `size` an epoch; None where there is no schedule."""
    return None if schedule is None else lambda merged: factor_at(schedule, merged / size)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and isfinite(value)


def _check_warmup(warmup: float, end: float, what: str = "epochs =") -> None:
    if warmup >= end:
        raise InvalidValue("warmup_epochs", warmup, f"less than {what} {end:g}")
