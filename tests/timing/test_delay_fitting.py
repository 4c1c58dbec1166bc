"""Delay models fitted to times: the true model is found, and its distance is reported."""

from random import Random

import pytest

from oddlot.machines.delay_models import (
    Delay,
    Deterministic,
    Erlang,
    Exponential,
    Lognormal,
    ShiftedExponential,
)
from oddlot.timing.delay_fitting import fit_delays

DRAWN = 20_000


def drawn(delay: Delay, count: int = DRAWN) -> list[float]:
    """Return times of a machine with a mean of 7 seconds."""
    time = delay.start(Random(1))
    return [7 * time() for _ in range(count)]


@pytest.mark.parametrize(
    "delay",
    [Exponential(), Lognormal(0.5), Lognormal(0.05), Erlang(4), Erlang(50), ShiftedExponential(0.6)],
    ids=repr,
)
def test_generating_model_fits_best(delay: Delay) -> None:
    best, second, *_ = fit_delays(drawn(delay))
    assert best.measured == DRAWN
    assert best.distance < 1.6 / DRAWN**0.5, "as far as chance leads"
    if isinstance(delay, Exponential):  # an Erlang with one stage, and nearly one with a shift of 0
        assert second.distance < 0.01
        assert getattr(best.delay, "shift", 0.0) < 1e-3
        assert getattr(best.delay, "shape", 1) == 1
        return
    assert type(best.delay) is type(delay)
    for name in delay.__slots__:
        assert getattr(best.delay, name) == pytest.approx(getattr(delay, name), rel=0.05)


def test_distance_compares_distribution_functions() -> None:
    """The times 1 and 3 have the mean 2.

    An exponential with this mean has 1 - exp(-0.5) = 0.393 of its mass below 1.
    """
    distances = {type(fit.delay): fit.distance for fit in fit_delays([3.0, 1.0])}
    assert distances[Exponential] == pytest.approx(0.393, abs=1e-3)


@pytest.mark.parametrize("time", [2.0, 0.1])
def test_equal_times_fit_a_deterministic_delay(time: float) -> None:
    """The mean of ten times 0.1 differs from 0.1 because of rounding."""
    (best, *others) = fit_delays([time] * 10)
    assert (best.delay, best.distance) == (Deterministic(), 0.0)
    assert all(fit.distance > 0.4 for fit in others)


def test_times_without_a_lognormal_fit_use_other_models() -> None:
    fits = fit_delays([1e-6] * 100 + [1e3] * 100)
    assert {type(fit.delay) for fit in fits} == {Deterministic, Exponential, ShiftedExponential, Erlang}
