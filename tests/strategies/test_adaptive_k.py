"""AdaptiveK: k rises when gradients oscillate, when a metric reaches a plateau, or at given times."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import oddlot
from oddlot import SGD, AdaptiveK, AdaptiveLoad, Job, Machine, ProportionalLoad, Run, Simulated, Strategy
from oddlot.core.commands import Step
from oddlot.core.events import Changed
from oddlot.core.support.errors import UsageError
from oddlot.machines import Lognormal
from oddlot.strategies import ByError, ByGradients, ByPlateau
from oddlot.strategies.support.noise_test import Pflug
from tests.strategies.plain_model import PlainModel, Played, played
from tests.transcripts import raises, warns

WORKERS, SAMPLES, BATCH, LR = 5, 4_000, 4, 0.01
NOISE = torch.randn(SAMPLES, generator=torch.Generator().manual_seed(1))
MACHINES = [Machine(f"m{number}", 0.25, Lognormal(0.5)) for number in range(WORKERS)]


def slope(model: nn.Module, batch: Any) -> Tensor:
    """Return a loss with the mean of the batch's numbers as its gradient."""
    out: Tensor = model(torch.ones(1, 1)).sum() * batch[0].mean()
    return out


def trained(strategy: Strategy, numbers: Tensor, computes: bool = True) -> Run:
    job = Job(
        lambda: nn.Linear(1, 1, bias=False),
        (numbers,),
        training_step=slope,
        optimizer=SGD(lr=LR),
        batch_size=BATCH,
    )
    return oddlot.fit(job, strategy, Simulated(MACHINES, computes=computes), until="epochs>=1")


def played_on(strategy: Strategy, numbers: Tensor, **how: Any) -> Played:
    """Train like `trained`, but without PyTorch."""
    return played(strategy, MACHINES, PlainModel(numbers.tolist(), lr=LR), BATCH, epochs=1, **how)


def rounds(run: Run | Played) -> list[tuple[float, int]]:
    """Return the end time and the number of updates of each round, without the smaller rounds at the end of the
    data."""
    found = [
        (record.now, len(action.shares))
        for record in run.records
        for action in record.actions
        if isinstance(action, Step)
    ]
    return found[:-WORKERS]


def ks(strategy: Strategy, numbers: Tensor) -> list[int]:
    return [k for _, k in rounds(played_on(strategy, numbers))]


def test_k_rises_when_gradients_are_noise() -> None:
    found = ks(AdaptiveK(switch=ByGradients(window=2, threshold=1, burn_in=5)), NOISE)
    assert found == sorted(found)
    assert set(found) == {1, 2, 3, 4, 5}
    assert min(found.count(k) for k in (1, 2, 3, 4)) >= 5


@pytest.mark.parametrize("window", [1, 4])
def test_pytorch_and_plain_model_give_the_same_rounds(window: int) -> None:
    """The plain model of other tests takes the same decisions as PyTorch."""
    strategy, numbers = AdaptiveK(switch=ByGradients(window, threshold=0)), NOISE[:400]
    real, plain = trained(strategy, numbers), played_on(strategy, numbers)
    assert rounds(real) == rounds(plain)
    assert inner_products(real) == pytest.approx(inner_products(plain), rel=1e-3, abs=1e-6)
    assert len(inner_products(real)) >= 4


def inner_products(run: Run | Played) -> list[float]:
    events = [record.event for record in run.records]
    return [event.inner for event in events if isinstance(event, Changed) and event.inner is not None]


def test_k_stays_while_gradients_agree() -> None:
    assert set(ks(AdaptiveK(switch=ByGradients(window=1, threshold=0)), torch.ones(1_000))) == {1}


@pytest.mark.parametrize(
    ("strategy", "down", "rises"),
    [
        (AdaptiveK(), 0.0, True),
        (AdaptiveK(), 30.0, False),
        (AdaptiveK(switch=ByGradients(window=1, threshold=10)), 30.0, True),
    ],
)
def test_windows_reveal_progress_despite_oscillating_gradients(
    strategy: AdaptiveK, down: float, rises: bool
) -> None:
    """Sums over windows reveal progress that gradients of single rounds hide.

    Gradients alternate along a direction with curvature 1.5 / learning rate, and agree along another direction.
    """

    def valley(weights: Sequence[float], mean: float) -> list[float]:
        return [150 * (weights[0] - mean), -down]

    model = PlainModel(NOISE.tolist(), valley, LR, weights=[[0.5, 0.5]])
    found = rounds(played(strategy, MACHINES, model, BATCH, epochs=1))
    assert (max(k for _, k in found) > 1) == rises


def test_gradients_are_not_measured_if_k_cannot_rise() -> None:
    for strategy, windows in ((AdaptiveK(most=1), {0}), (AdaptiveK(), {20})):
        run = played_on(strategy, torch.ones(200))
        steps = [action for record in run.records for action in record.actions if isinstance(action, Step)]
        assert {step.measure for step in steps} == windows


def test_overflowing_gradients_are_logged_as_none() -> None:
    """The weights are still finite, so the run continues and the log can be written."""
    with warns("weights_too_large"):
        run = trained(AdaptiveK(switch=ByGradients(window=1)), torch.full((200,), 3e30))
    message = [record.event for record in run.records if isinstance(record.event, Changed)]
    assert message
    assert all(one.inner is None for one in message)


def test_simulation_without_gradients_warns_adaptive_strategies() -> None:
    for strategy in (AdaptiveK(), AdaptiveLoad(), ProportionalLoad(AdaptiveK())):
        with warns("no_gradients_to_adapt_to"):
            trained(strategy, NOISE[:40], computes=False)


def test_plateau_and_times_need_no_gradients() -> None:
    by_plateau = ByPlateau()
    assert not AdaptiveK(switch=by_plateau).traits(1).reads_gradients
    assert not AdaptiveK(times=((1.0, 2),)).traits(1).reads_gradients
    with raises(UsageError, "metric_not_evaluated", metric="loss"):
        AdaptiveK(switch=by_plateau).validate(9, [])


def test_k_rises_by_rise_up_to_most() -> None:
    strategy = AdaptiveK(k=1, rise=2, most=3, switch=ByGradients(window=2, threshold=0))
    assert set(ks(strategy, NOISE[:1_000])) == {1, 3}


def test_k_rises_when_a_metric_reaches_a_plateau() -> None:
    """k rises after `patience` evaluations without improvement, up to the number of workers, for any gradients."""
    plateau = AdaptiveK(switch=ByPlateau("error", "min", patience=2))
    model = PlainModel([0.0] * SAMPLES, lr=LR)
    run = played(plateau, MACHINES, model, BATCH, epochs=1, evaluate_every=50)
    found = [k for _, k in rounds(run)]
    assert [found[round_] for round_ in (50, 110, 210, 310, 410)] == [1, 1, 2, 3, 4]


def test_k_rises_at_given_times() -> None:
    """k rises at the given times, whether or not gradients oscillate."""
    times = (20.0, 2), (40.0, 4)
    for numbers in (NOISE, torch.ones(SAMPLES)):
        found = rounds(played_on(AdaptiveK(times=times), numbers[:2_000]))
        for now, k in found:
            assert k == max([1, *(later for second, later in times if now >= second)])
        assert {k for _, k in found} == {1, 2, 4}


def test_pflug_statistic_restarts_after_each_signal() -> None:
    pflug = Pflug()
    said = [pflug.count(inner, 1, 1, 3) for inner in (-1, -1, -1, 1, -1, -1, -1)]
    assert said == [False] * 3 + [True] + [False] * 3
    assert (pflug.negative, pflug.rounds) == (3, 3)


def test_pflug_statistic_of_windows_forgets_old_progress() -> None:
    pflug = Pflug()
    said = [pflug.count(inner, 20, 1, 0) for inner in (1, 1, 1, 1, -1, -1, 1)]
    assert said == [False] * 5 + [True, False]
    assert (pflug.negative, pflug.rounds) == (0, 20)


def test_gradients_are_compared_by_windows_of_rounds() -> None:
    """If no window is completed, k does not rise."""
    for window, found in ((4, {1, 2, 3, 4, 5}), (SAMPLES, {1})):
        assert set(ks(AdaptiveK(switch=ByGradients(window=window, threshold=0)), NOISE[:1_000])) == found


@pytest.mark.parametrize(
    ("make", "code", "key"),
    [
        (lambda: AdaptiveK(k=0), "invalid_value", "k"),
        (lambda: AdaptiveK(k=5, most=3), "most_below_k", "most"),
        (lambda: AdaptiveK(switch=ByError(1.0)), "invalid_value", "switch"),  # type: ignore[arg-type]  # on purpose
        (
            lambda: AdaptiveK(switch=ByPlateau()).validate(9, ["accuracy"]),
            "metric_not_evaluated",
            "switch.metric",
        ),
        (lambda: AdaptiveK(switch=ByGradients(5), times=((1.0, 2),)), "no_effect_beside_times", "switch"),
        (lambda: AdaptiveK(most=3, times=((1.0, 6),)), "no_effect_beside_times", "most"),
        (lambda: AdaptiveK(rise=2, times=((1.0, 6),)), "no_effect_beside_times", "rise"),
        (lambda: AdaptiveK(times=((1.0, 2.0),)), "invalid_value", "times"),  # type: ignore[arg-type]  # on purpose
        (lambda: AdaptiveK(times=((1.0, True),)), "invalid_value", "times"),
        (lambda: AdaptiveK(times=((2.0, 2), (1.0, 3))), "invalid_value", "times"),
        (lambda: AdaptiveK(times=((float("nan"), 2),)), "invalid_value", "times"),
        (lambda: AdaptiveK(times=((1.0, 0),)), "invalid_value", "times"),
        (lambda: AdaptiveK(times=(("a", 2),)), "invalid_value", "times"),  # type: ignore[arg-type]  # on purpose
        (lambda: AdaptiveK(times=(2.0,)), "invalid_value", "times"),  # type: ignore[arg-type]  # on purpose
        (lambda: AdaptiveK(times=((1.0, 6),)).validate(5, []), "too_few_workers", "times"),
        (lambda: AdaptiveK(k=6).validate(5, []), "too_few_workers", "k"),
    ],
)
def test_invalid_settings_are_rejected(make: Callable[[], Any], code: str, key: str) -> None:
    with raises(UsageError, code) as caught:
        make()
    assert caught.value.key == key
