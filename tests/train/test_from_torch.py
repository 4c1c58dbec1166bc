"""A Job rejects objects of a PyTorch training loop, and the error names the object to pass instead."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from oddlot import Job
from oddlot.core.support.errors import UsageError
from tests.transcripts import raises

DATA = TensorDataset(torch.zeros(8, 2), torch.zeros(8, 2))
WEIGHTS = [nn.Parameter(torch.zeros(2))]
SGD = torch.optim.SGD(WEIGHTS, lr=0.1, momentum=0.9, nesterov=True)


@pytest.mark.parametrize(
    ("setting", "value", "kind"),
    [
        ("optimizer", SGD, "SGD"),
        ("optimizer", torch.optim.AdamW, "AdamW"),
        ("optimizer", torch.optim.RMSprop(WEIGHTS), "RMSprop"),
        ("local_optimizer", SGD, "SGD"),
        ("lr_schedule", StepLR(SGD, 1), "StepLR"),
        ("lr_schedule", StepLR, "StepLR"),
    ],
)
def test_torch_objects_are_rejected_with_an_alternative(setting: str, value: Any, kind: str) -> None:
    given: dict[str, Any] = {"train_data": DATA, "loss": nn.functional.mse_loss} | {setting: value}
    with raises(UsageError, "torch_object_given", name=setting, type=kind) as rejection:
        Job(lambda: nn.Linear(2, 2), **given)
    assert rejection.value.key == setting


def scaler(enabled: bool = True) -> Any:
    return torch.amp.GradScaler("cpu", enabled=enabled)


SCALER, DISABLED = scaler(), scaler(enabled=False)


class Step:
    def __init__(self) -> None:
        self.scaler = SCALER

    def step(self, model: Any, batch: Any) -> Any:
        return self.scaler.scale(model(batch))


def scaled(loss: Any) -> Any:
    return SCALER.scale(loss)


@pytest.mark.parametrize(
    ("step", "path"),
    [
        (lambda model, batch: SCALER.scale(model(batch)), "training_step.SCALER"),
        (lambda model, batch: scaled(model(batch)), "training_step.scaled.SCALER"),
        (Step().step, "training_step.scaler"),
        (lambda model, batch: DISABLED.scale(model(batch)), ""),
    ],
    ids=["global", "helper", "method", "disabled"],
)
def test_grad_scaler_is_rejected(step: Any, path: str) -> None:
    if not path:
        Job(lambda: nn.Linear(2, 2), DATA, training_step=step)
        return
    with raises(UsageError, "torch_object_given", type="GradScaler", path=path):
        Job(lambda: nn.Linear(2, 2), DATA, training_step=step)
