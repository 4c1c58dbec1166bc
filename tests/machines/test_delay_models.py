"""The mean, variance and shape of each delay model match closed forms, with seeded draws."""

from itertools import islice, pairwise
from math import exp, log, sqrt
from random import Random
from statistics import fmean, pvariance

import pytest

from oddlot.machines.delay_models import (
    Delay,
    Deterministic,
    Erlang,
    Exponential,
    Lognormal,
    ShiftedExponential,
    Trace,
)

DRAWS = 40_000


def draw(model: Delay, seed: int, draws: int = DRAWS) -> list[float]:
    times = model.start(Random(seed))
    return [times() for _ in range(draws)]


@pytest.mark.parametrize(
    ("model", "variance"),
    [
        (Deterministic(), 0.0),
        (Exponential(), 1.0),
        (Lognormal(cv=0.3), 0.09),
        (Lognormal(cv=1.0), 1.0),
        (Lognormal(cv=0.0), 0.0),
        (Erlang(shape=1), 1.0),
        (Erlang(shape=4), 0.25),
        (ShiftedExponential(shift=0.0), 1.0),
        (ShiftedExponential(shift=0.7), 0.09),
    ],
    ids=repr,
)
def test_mean_and_variance_match_the_closed_form(model: Delay, variance: float) -> None:
    times = draw(model, seed=3)
    # Five standard errors of the mean. The variance of a lognormal's variance is large, hence 8 %.
    assert fmean(times) == pytest.approx(1, abs=5 * sqrt(variance / DRAWS) + 1e-12)
    assert pvariance(times) == pytest.approx(variance, rel=0.08, abs=1e-12)


@pytest.mark.parametrize(
    ("model", "time", "share"),
    [
        (Exponential(), 1.0, 1 - exp(-1)),
        (Erlang(shape=2), 1.0, 1 - 3 * exp(-2)),
        (ShiftedExponential(shift=0.5), 1.0, 1 - exp(-1)),
        (Lognormal(cv=1.0), exp(-log(2) / 2), 0.5),  # the median
    ],
    ids=repr,
)
def test_share_of_short_times_matches_the_closed_form(model: Delay, time: float, share: float) -> None:
    shorter = sum(drawn <= time for drawn in draw(model, seed=5)) / DRAWS
    assert shorter == pytest.approx(share, abs=5 * sqrt(0.25 / DRAWS))


def test_shift_is_the_smallest_time() -> None:
    assert 0.7 <= min(draw(ShiftedExponential(shift=0.7), seed=1)) < 0.7001


def test_trace_cycles_in_order_from_a_seeded_start() -> None:
    model = Trace((1.0, 2.0, 3.0))
    follows = {1.0: 2.0, 2.0: 3.0, 3.0: 1.0}
    starts = set()
    for seed in range(20):
        times = draw(model, seed, draws=7)
        assert all(follows[now] == after for now, after in pairwise(times))
        starts.add(times[0])
    assert starts == {1.0, 2.0, 3.0}


@pytest.mark.parametrize(
    "model", [Exponential(), Lognormal(0.5), Erlang(3), ShiftedExponential(0.2), Trace((1.0, 2.0, 4.0, 8.0))]
)
def test_streams_repeat_with_their_seed_and_are_independent(model: Delay) -> None:
    one, other = model.start(Random(1)), model.start(Random(1))
    alone = list(islice(iter(one, None), 5))
    assert [other() for _ in range(5)] == alone
    assert [draw(model, seed, draws=5) for seed in range(2, 9)] != [alone] * 7
