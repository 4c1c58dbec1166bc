"""One worker and `synchronous` train as a plain PyTorch loop does, bit for bit."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LRScheduler

from benchmarks.parity.plain_loop import PlainLoop, largest_difference
from oddlot import SGD, Adam, AdamW, FederatedAveraging, Job, Machine, Simulated, Strategy, Synchronous, fit
from oddlot.run.result import Run

SAMPLES, BATCH, FEATURES = 53, 8, 7


def rows() -> tuple[Tensor, Tensor]:
    """Return random points, and a class for each."""
    points = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(5))
    return points, points[:, :3].argmax(dim=1)


def net() -> nn.Module:
    """Return a network with odd shapes, dropout and batch statistics."""
    return nn.Sequential(
        nn.Linear(FEATURES, 19), nn.BatchNorm1d(19), nn.ReLU(), nn.Dropout(0.2), nn.Linear(19, 3)
    )


def by_layer(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW without decay of biases and norms, and a smaller rate in the last layer."""
    named = list(model.named_parameters())
    flat = [each for name, each in named if each.ndim == 1]
    return torch.optim.AdamW(
        [
            {"params": flat, "weight_decay": 0.0},
            {"params": [model[0].weight], "lr": 0.02},  # type: ignore[index]  # a Sequential
            {"params": [model[4].weight], "lr": 0.005, "betas": (0.8, 0.99)},  # type: ignore[index]
        ],
        lr=0.01,
        weight_decay=0.1,
    )


def head_only(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of the last layer."""
    return torch.optim.SGD(model[4].parameters(), lr=0.1, momentum=0.9, nesterov=True)  # type: ignore[index]


def frozen_first() -> nn.Module:
    """Return a network whose first layer is frozen."""
    model = net()
    model.get_submodule("0").requires_grad_(False)
    return model


def two_rates(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with a small rate in the first layer, which is in the middle of its groups."""
    groups: list[dict[str, Any]] = [
        {"params": model.get_submodule("4").parameters()},
        {"params": model.get_submodule("0").parameters(), "lr": 0.003},
        {"params": model.get_submodule("1").parameters(), "lr": 0.02},
    ]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def decoupled(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 0.01, weight_decay=0.1, decoupled_weight_decay=True)


def one_cycle(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100, cycle_momentum=False)


def halving(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def trained(job: Job, strategy: Strategy | None = None) -> tuple[Run, nn.Module]:
    """Return the run of one worker, and the model of the plain loop."""
    engine = Simulated([Machine("m0", 0.001)])
    run = fit(job, strategy or Synchronous(), engine, until="epochs>=4", max_update_ratio=None, quiet=True)
    return run, PlainLoop.of(job).follow(run)


def a_job(**settings: Any) -> Job:
    given = {"model": net, **settings}
    return Job(**given, train_data=rows(), loss=cross_entropy, batch_size=BATCH, device="cpu")


JOBS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": SGD(0.1)},
    "sgd_momentum": {"optimizer": SGD(0.1, 0.9, weight_decay=0.01)},
    "sgd_nesterov": {"optimizer": SGD(0.1, 0.9, nesterov=True, weight_decay=0.01)},
    "adam": {"optimizer": Adam(0.01, weight_decay=0.01)},
    "adamw": {"optimizer": AdamW(0.01)},
    "groups": {"optimizer": by_layer},
    "head_only": {"optimizer": head_only},
    "clipped": {"optimizer": by_layer, "max_grad_norm": 0.5},
    "clipped_sgd": {"optimizer": SGD(0.1, 0.9), "max_grad_norm": 0.5},
    "accumulated": {"optimizer": AdamW(0.01), "micro_batch_size": 3, "max_grad_norm": 0.5},
    "clipped_groups": {"optimizer": by_layer, "max_grad_norm": 0.5, "micro_batch_size": 3},
    "averaged": {"optimizer": by_layer, "ema_decay": 0.9},
    "schedule_of_epochs": {"optimizer": by_layer, "lr_scheduler": halving},
    "schedule_of_versions": {
        "optimizer": by_layer,
        "lr_scheduler": one_cycle,
        "lr_scheduler_every": "version",
    },
    "decoupled": {"optimizer": decoupled},
    "left_out_with_absolute_rates": {
        "optimizer": head_only,
        "lr_scheduler": one_cycle,
        "lr_scheduler_every": "version",
    },
    "unfrozen": {"model": frozen_first, "optimizer": two_rates, "unfreeze_at": {"0.*": 1}},
    "everything": {
        "model": frozen_first,
        "optimizer": two_rates,
        "unfreeze_at": {"0.*": 2},
        "lr_scheduler": one_cycle,
        "lr_scheduler_every": "version",
        "micro_batch_size": 3,
        "max_grad_norm": 0.5,
        "ema_decay": 0.9,
    },
}


@pytest.mark.parametrize("name", JOBS)
def test_one_worker_equals_a_plain_loop(name: str) -> None:
    run, model = trained(a_job(**JOBS[name]))
    assert largest_difference(run.model, model) == 0


@pytest.mark.parametrize(
    "name",
    [
        *("sgd_momentum", "groups", "head_only", "clipped", "accumulated", "schedule_of_epochs"),
        "unfrozen",
    ],
)
def test_local_steps_equal_a_plain_loop(name: str) -> None:
    job = a_job(**JOBS[name], keep_optimizer=True)
    run, model = trained(job, FederatedAveraging())
    assert largest_difference(run.model, model) == 0
