"""Schedules equal PyTorch's schedulers at their steps, and invalid schedules are errors."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from math import cos, inf, nan, pi
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from oddlot import SGD, Job
from oddlot.core.support.errors import JobError, UsageError
from oddlot.lr_schedules import Cosine, Linear, MultiStep
from oddlot.train.learning_rates import rates_of
from oddlot.train.lr_schedules import Schedule, factor_at
from tests.transcripts import raises

PER_EPOCH = 4
"""Steps per epoch of PyTorch's scheduler."""
Scheduler = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]


def rates(make: Scheduler, epochs: int) -> list[float]:
    """Return PyTorch's factors before each step, and after the last step."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, found = make(optimizer), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SequentialLR calls its own deprecated code
        for _ in range(PER_EPOCH * epochs + 1):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return found


def warmed(after: Scheduler) -> Scheduler:
    """Return a scheduler with a warm-up of two epochs. PyTorch's warm-up cannot start at 0."""
    return lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 1e-9, total_iters=2 * PER_EPOCH), after(optimizer)],
        milestones=[2 * PER_EPOCH],
    )


@pytest.mark.parametrize(
    ("schedule", "theirs"),
    [
        (Cosine(10), lambda o: lr_scheduler.CosineAnnealingLR(o, 10 * PER_EPOCH)),
        (Cosine(10, floor=0.1), lambda o: lr_scheduler.CosineAnnealingLR(o, 10 * PER_EPOCH, eta_min=0.1)),
        (Cosine(10, warmup_epochs=2), warmed(lambda o: lr_scheduler.CosineAnnealingLR(o, 8 * PER_EPOCH))),
        (Linear(10, floor=0.25), lambda o: lr_scheduler.LinearLR(o, 1.0, 0.25, 10 * PER_EPOCH)),
        (Linear(7), lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, 7 * PER_EPOCH)),
        (Linear(10, 2, 0.5), warmed(lambda o: lr_scheduler.LinearLR(o, 1.0, 0.5, 8 * PER_EPOCH))),
        (MultiStep((3, 6.5)), lambda o: lr_scheduler.MultiStepLR(o, [12, 26])),
        (MultiStep((1, 2, 9), factor=0.5), lambda o: lr_scheduler.MultiStepLR(o, [4, 8, 36], 0.5)),
        (MultiStep((6,), 0.5, 2), warmed(lambda o: lr_scheduler.MultiStepLR(o, [16], 0.5))),
    ],
    ids=lambda value: repr(value) if not callable(value) or hasattr(value, "warmup_epochs") else "",
)
def test_schedule_equals_pytorch(schedule: Schedule, theirs: Scheduler) -> None:
    ours = [schedule(step / PER_EPOCH) for step in range(10 * PER_EPOCH + 1)]
    assert ours == pytest.approx(rates(theirs, 10), abs=1e-8)


def test_factor_stays_at_the_floor_after_the_last_epoch() -> None:
    assert [Cosine(10, floor=0.1)(epochs) for epochs in (10, 15, 20, 1e9)] == pytest.approx([0.1] * 4)
    assert [Linear(10)(epochs) for epochs in (10, 11, 1e9)] == [0.0] * 3


def test_warmup_starts_at_zero_and_is_part_of_the_epochs() -> None:
    cosine, linear, steps = Cosine(4, warmup_epochs=1), Linear(4, warmup_epochs=1), MultiStep((2,), 0.1, 1)
    for schedule in (cosine, linear, steps):
        assert [schedule(0.0), schedule(0.5), schedule(1.0)] == [0.0, 0.5, 1.0]
    assert [cosine(2.0), cosine(4.0)] == pytest.approx([(1 + cos(pi / 3)) / 2, 0.0])


def test_schedule_is_evaluated_by_samples_and_is_plain_data() -> None:
    """A schedule is evaluated by samples. Its settings may be lists and numpy numbers."""
    steps: Any = MultiStep([1, 2])  # type: ignore[arg-type]  # that list
    job = Job(lambda: nn.Linear(1, 1), [1.0], nn.MSELoss(), optimizer=SGD(2.0), lr_schedule=steps)
    rates = rates_of(job, 48)
    assert rates is not None
    assert [rates(merged, 0)[0] for merged in (0, 47, 48, 95, 96)] == pytest.approx([2, 2, 0.2, 0.2, 0.02])
    assert rates_of(replace(job, lr_schedule=None), 48) is None
    assert steps == MultiStep((1, 2))
    assert len({Cosine(3), Cosine(3.0), Linear(3)}) == 2
    half: Any = np.float32(0.5)
    assert type(factor_at(lambda _: half, 1.0)) is float


@pytest.mark.parametrize(
    ("kind", "arguments", "name", "given"),
    [
        (Cosine, (0,), "epochs", 0),
        (Cosine, ("30",), "epochs", "30"),
        (Cosine, (3, 3), "warmup_epochs", 3),
        (Linear, (3, -1), "warmup_epochs", -1),
        (Linear, (3, 0, 1.5), "floor", 1.5),
        (MultiStep, ((),), "at_epochs", ()),
        (MultiStep, ((2, 2),), "at_epochs", (2, 2)),
        (MultiStep, ((0, 2),), "at_epochs", (0, 2)),
        (MultiStep, ((1, nan),), "at_epochs", (1, nan)),
        (MultiStep, (3,), "at_epochs", 3),
        (MultiStep, ((1,), -0.1), "factor", -0.1),
        (MultiStep, ((1, 2), 0.1, 1), "warmup_epochs", 1),
    ],
)
def test_invalid_schedule_settings_are_rejected(
    kind: Callable[..., Any], arguments: tuple[Any, ...], name: str, given: Any
) -> None:
    with raises(UsageError, "invalid_value", name=name, given=given) as caught:
        kind(*arguments)
    assert caught.value.key == name


@pytest.mark.parametrize("factor", [nan, inf, -0.5, "1", None, True, torch.tensor(0.5)])
def test_invalid_factor_raises(factor: Any) -> None:
    with raises(JobError, "invalid_factor", given=factor, epochs=2.5):
        factor_at(lambda _: factor, 2.5)


def test_failing_schedule_raises_with_its_traceback() -> None:
    with raises(JobError, "user_code_failed", where="the schedule", epochs=0.0) as caught:
        factor_at(lambda epochs: 1 / epochs, 0.0)
    assert "in <lambda>" in caught.fields["reason"]
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
