"""Expected time of the fastest k of n workers, compared with closed forms or random draws."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

from oddlot.machines.delay_models import (
    Delay,
    Deterministic,
    Erlang as DelayErlang,
    Exponential as DelayExponential,
    Lognormal,
    ShiftedExponential,
    Trace,
)
from oddlot.timing.order_statistics import mean_seconds, rounds_of
from oddlot.timing.response_times import ExponentialSamples, Hypoexponential, Measured, Scattered, Shifted
from oddlot.timing.survival import Numbers

WORKERS, DRAWS = 20, 20_000
KS = (1, 2, 10, 19, 20)


@dataclass(frozen=True)
class Exponential:
    """Exponential times with a mean of 1 per sample."""

    def survival(self, seconds: Numbers, samples: int) -> Numbers:
        return np.exp(-seconds / samples)


def harmonic(count: int) -> float:
    return sum(1 / number for number in range(1, count + 1))


@pytest.mark.parametrize(
    ("workers", "samples", "step", "rel"),
    [(1, 1, 1, 2e-4), (5, 1, 1, 2e-4), (50, 7, 1, 2e-4), (400, 1, 1, 2e-4), (4_000, 1, 1_999, 2e-3)],
)
def test_exponential_times_match_harmonic_numbers(workers: int, samples: int, step: int, rel: float) -> None:
    """Times match harmonic numbers, also for thousands of workers in several blocks."""
    ks = range(1, workers + 1, step)
    found = mean_seconds([Exponential()] * workers, samples, ks)
    expected = [samples * (harmonic(workers) - harmonic(workers - k)) for k in ks]
    assert found == pytest.approx(expected, rel=rel)


MODELS: list[tuple[Any, Callable[[np.random.Generator, int, tuple[int, int]], Numbers]]] = [
    (Hypoexponential(1.0, 0.025), lambda rng, b, of: rng.exponential(1, of) + rng.exponential(0.025 * b, of)),
    (Hypoexponential(2.0, 0.05), lambda rng, b, of: rng.exponential(2, of) + rng.exponential(0.05 * b, of)),
    (
        Shifted(1.0, 0.025, 0.4),
        lambda rng, b, of: rng.exponential(1, of) + 0.01 * b + rng.exponential(0.015 * b, of),
    ),
    (ExponentialSamples(1.0, 0.025), lambda rng, b, of: rng.exponential(1, of) + rng.gamma(b, 0.025, of)),
    (
        Measured((1.0, 0.5, 3.0), (0.02, 0.03, 0.1)),
        lambda rng, b, of: rng.choice(np.array([1.0, 0.5, 3.0]) + b * np.array([0.02, 0.03, 0.1]), of),
    ),
]


DELAYS = (
    *(Deterministic(), DelayExponential(), ShiftedExponential(0.5), DelayErlang(4), Trace((1.0, 3.0))),
    *(Lognormal(0.05), Lognormal(1.0), Lognormal(0.0)),
)


@pytest.mark.parametrize("delay", DELAYS, ids=repr)
def test_delay_order_statistics_match_simulation(delay: Delay) -> None:
    """The times include one second of communication. `KS` includes the first and last of many workers."""
    found = mean_seconds([Scattered(delay, 0.1, 1.0)] * WORKERS, 10, KS)
    draws, rng = 4_000, Random(1)
    drawn = np.sort([[delay.start(rng)() for _ in range(WORKERS)] for _ in range(draws)], 1)
    drawn = drawn[:, np.array(KS) - 1]
    assert found == pytest.approx(1 + drawn.mean(0), abs=4 * drawn.std(0).max() / draws**0.5 + 0.005)


def test_slowest_of_a_thousand_matches_the_closed_form() -> None:
    """The times are a shift of 0.5 s plus an exponential with a mean of 0.5 s."""
    (found,) = mean_seconds([Scattered(ShiftedExponential(0.5), 0.1)] * 1_000, 10, [1_000])
    assert found == pytest.approx(0.5 + 0.5 * harmonic(1_000), rel=1e-3)


@pytest.mark.parametrize(("model", "draw"), MODELS, ids=lambda one: repr(one)[:20])
@pytest.mark.parametrize("samples", [1, 40, 400])
def test_order_statistics_match_simulation(model: Any, draw: Callable[..., Numbers], samples: int) -> None:
    """For 40 samples, the communication and computation of the second model take equally long."""
    drawn = np.sort(draw(np.random.default_rng(1), samples, (DRAWS, WORKERS)), 1)[:, np.array(KS) - 1]
    expected, error = drawn.mean(0), drawn.std(0) / DRAWS**0.5
    found = mean_seconds([model] * WORKERS, samples, KS)
    assert (np.abs(found - expected) < 4 * error + 2e-3 * expected).all(), found / expected


def test_unequal_workers_match_simulation() -> None:
    fast, slow = Hypoexponential(1.0, 0.025), Hypoexponential(5.0, 0.1)
    rng = np.random.default_rng(2)
    parts = [
        rng.exponential(mean, (DRAWS, count)) + rng.exponential(40 * each, (DRAWS, count))
        for count, mean, each in ((15, 1.0, 0.025), (5, 5.0, 0.1))
    ]
    drawn = np.sort(np.concatenate(parts, 1), 1)[:, np.array(KS) - 1]
    found = mean_seconds([slow, *[fast] * 15, *[slow] * 4], 40, KS)
    assert (np.abs(found - drawn.mean(0)) < 4 * drawn.std(0) / DRAWS**0.5 + 1e-3).all()


@pytest.mark.parametrize("workers", [20, 1_000])
def test_extremes_of_measured_times_are_kept(workers: int) -> None:
    """The extremes determine the times of the first and of the last worker."""
    times = np.random.default_rng(3).pareto(1.1, 3_000)
    found = mean_seconds([Measured(tuple(times.tolist()), (0.0,) * 3_000)] * workers, 1, [1, workers])
    steps, chances = np.diff(np.sort(times), prepend=0.0), np.arange(3_000) / 3_000
    assert found == pytest.approx(
        [steps @ (1 - chances) ** workers, steps @ (1 - chances**workers)], rel=0.02
    )


def test_rounds_of_accepts_iterators() -> None:
    once = rounds_of((Exponential() for _ in range(3)), iter([1, 2]), iter([1, 3]))
    assert once == rounds_of([Exponential()] * 3, [1, 2], [1, 3])
