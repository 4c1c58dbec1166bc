"""Rounds wait for more workers when gradients point back and forth, or at times that are given, and not before."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import oddlot
from oddlot import SGD, AdaptiveK, Exponential, Job, Machine, Run, Simulated
from oddlot.core.errors import UsageError
from oddlot.core.pflug import Pflug
from oddlot.core.words import Step

WORKERS, SAMPLES = 5, 4_000
NOISE = torch.randn(SAMPLES, generator=torch.Generator().manual_seed(1))


def slope(model: nn.Module, batch: Any) -> Tensor:
    """Whose gradient is the mean of the batch's numbers."""
    out: Tensor = model(torch.ones(1, 1)).sum() * batch[0].mean()
    return out


def trained(strategy: AdaptiveK, numbers: Tensor) -> Run:
    job = Job(
        lambda: nn.Linear(1, 1, bias=False), (numbers,), training_step=slope, optimizer=SGD(lr=0.01), batch=4
    )
    machines = [Machine(f"m{number}", 0.25, Exponential()) for number in range(WORKERS)]
    return oddlot.fit(job, strategy, Simulated(machines), until="epochs>=1")


def rounds(run: Run) -> list[tuple[float, int]]:
    """When each was closed, and with how many results."""
    return [
        (record.now, len(action.shares))
        for record in run.records
        for action in record.actions
        if isinstance(action, Step)
    ]


def test_it_waits_for_more_when_gradients_are_noise() -> None:
    found = [k for _, k in rounds(trained(AdaptiveK(window=1, threshold=1, burn_in=5), NOISE))]
    whole = found[:-WORKERS]  # at the end of the data there is less
    assert whole == sorted(whole)
    assert set(whole) == {1, 2, 3, 4}, "and never for all"
    assert min(whole.count(k) for k in (1, 2, 3)) >= 5


def test_it_stays_as_long_as_the_model_moves_on() -> None:
    found = [k for _, k in rounds(trained(AdaptiveK(window=1, threshold=0), torch.ones(SAMPLES)))]
    assert set(found) == {1}


def test_steps_of_k_and_its_limit() -> None:
    strategy = AdaptiveK(k=1, rise=2, most=3, window=1, threshold=0)
    assert {k for _, k in rounds(trained(strategy, NOISE))[:-WORKERS]} == {1, 3}


def test_times_that_are_given() -> None:
    """Whatever the gradients are."""
    times = (20.0, 2), (40.0, 4)
    for numbers in (NOISE, torch.ones(SAMPLES)):
        found = rounds(trained(AdaptiveK(times=times), numbers))[:-WORKERS]
        for now, k in found:
            assert k == max([1, *(later for second, later in times if now >= second)])
        assert {k for _, k in found} == {1, 2, 4}


def test_the_statistic_counts_since_its_last_word() -> None:
    pflug = Pflug()
    said = [pflug.count(inner, 1, 1, 3) for inner in (-1, -1, -1, 1, -1, -1, -1)]
    assert said == [False] * 3 + [True] + [False] * 3
    assert (pflug.negative, pflug.rounds) == (3, 3)


def test_of_windows_progress_of_long_ago_is_forgotten() -> None:
    pflug = Pflug()
    said = [pflug.count(inner, 20, 1, 0) for inner in (1, 1, 1, 1, -1, -1, 1)]
    assert said == [False] * 5 + [True, False]
    assert (pflug.negative, pflug.rounds) == (0, 20)


def test_windows_of_rounds_are_what_is_compared() -> None:
    """Whoever never ends one never learns anything."""
    for window, ks in ((4, {1, 2, 3, 4}), (SAMPLES, {1})):
        found = rounds(trained(AdaptiveK(window=window, threshold=0), NOISE))
        assert {k for _, k in found[:-WORKERS]} == ks


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: AdaptiveK(k=0), "k = 0 must be at least 1"),
        (lambda: AdaptiveK(times=((2.0, 2), (1.0, 3))), "rows of seconds, which rise, and k"),
        (lambda: AdaptiveK(times=((float("nan"), 2),)), "rows of seconds, which rise, and k"),
        (lambda: AdaptiveK(times=((1.0, 0),)), "and k, at least 1"),
        (lambda: AdaptiveK(times=(2.0,)), "rows of seconds, which rise, and k"),  # type: ignore[arg-type]  # on purpose
        (lambda: AdaptiveK(k=6).check_workers(5), "k = 6 results of 5 workers: lower k or add workers"),
    ],
)
def test_what_makes_no_sense(make: Callable[[], Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        make()
