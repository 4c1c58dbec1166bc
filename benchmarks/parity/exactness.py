"""The weights of one worker with `synchronous` against a plain loop on the same minibatches, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR, StepLR

from benchmarks.parity.plain_loop import PlainLoop, largest_difference
from benchmarks.report import show
from oddlot import SGD, Adam, AdamW, Job, Local, Machine, Simulated, Synchronous, fit
from oddlot.run.result import Run

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
BATCH = 64


def convolutional() -> nn.Module:
    """Return a network for 28 x 28 pixels with batch normalization and dropout."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 13 * 13, 10),
    )  # fmt: skip


def wide() -> nn.Module:
    """Return a network with 1.2 million weights in one parameter, more than a chunk of a merge."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 1500), nn.ReLU(), nn.Linear(1500, 10))


def small() -> nn.Module:
    """Return a network with parameters of odd sizes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 31), nn.Tanh(), nn.Linear(31, 10))


def no_decay_of_biases(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW with two groups: biases and norms have another rate and no decay."""
    flat = [one for one in model.parameters() if one.ndim == 1]
    others = [one for one in model.parameters() if one.ndim > 1]
    groups: list[dict[str, Any]] = [{"params": others, "weight_decay": 0.1}, {"params": flat, "lr": 2e-3}]
    return torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.0)


def sgd_groups(model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD with a group for each parameter, with its own rate and momentum."""
    groups = [
        {"params": [one], "lr": 0.05 / (1 + at), "momentum": 0.9 - 0.1 * at}
        for at, one in enumerate(model.parameters())
    ]
    return torch.optim.SGD(groups, lr=0.05, weight_decay=1e-4)


def cosine(optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Return a schedule of steps."""
    return CosineAnnealingLR(optimizer, 200)


def halving(optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Return a schedule of epochs."""
    return StepLR(optimizer, 1, gamma=0.5)


def one_cycle(optimizer: torch.optim.Optimizer) -> LRScheduler:
    """Return a schedule of steps with absolute rates."""
    return OneCycleLR(optimizer, 5e-3, total_steps=1_000, cycle_momentum=False)


def adam_groups(model: nn.Module) -> torch.optim.Optimizer:
    """Return Adam with two groups."""
    first, *others = model.parameters()
    groups: list[dict[str, Any]] = [{"params": [first], "lr": 5e-4}, {"params": others}]
    return torch.optim.Adam(groups, lr=1e-3, weight_decay=1e-3)


def last_layer(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer of the last two parameters."""
    return torch.optim.SGD([*model.parameters()][-2:], lr=0.05, momentum=0.9)


GROUPED = {"SGD": sgd_groups, "Adam": adam_groups, "AdamW": no_decay_of_biases}
EVERYTHING: dict[str, Any] = {
    "lr_scheduler": cosine,
    "lr_scheduler_every": "version",
    "micro_batch_size": 24,
    "max_grad_norm": 0.5,
    "ema_decay": 0.99,
}
FEATURES: dict[str, dict[str, Any]] = {
    "SGD": {"optimizer": SGD(0.05)},
    "SGD, momentum, decay": {"optimizer": SGD(0.05, 0.9, weight_decay=1e-3)},
    "SGD, Nesterov": {"optimizer": SGD(0.05, 0.9, nesterov=True)},
    "SGD, groups": {"optimizer": sgd_groups},
    "Adam, decay": {"optimizer": Adam(1e-3, weight_decay=1e-3)},
    "AdamW": {"optimizer": AdamW(1e-3)},
    "AdamW, groups": {"optimizer": no_decay_of_biases},
    "schedule of epochs": {"optimizer": no_decay_of_biases, "lr_scheduler": halving},
    "schedule of steps": {"optimizer": sgd_groups, "lr_scheduler": cosine, "lr_scheduler_every": "version"},
    "clipping": {"optimizer": SGD(0.05, 0.9), "max_grad_norm": 0.5},
    "accumulation, clipping": {
        "optimizer": no_decay_of_biases,
        "micro_batch_size": 24,
        "max_grad_norm": 0.5,
    },
    "moving average": {"optimizer": AdamW(1e-3), "ema_decay": 0.99},
    "left out, absolute rates": {
        "optimizer": last_layer,
        "lr_scheduler": one_cycle,
        "lr_scheduler_every": "version",
    },
    **{f"{name}, everything": {"optimizer": make, **EVERYTHING} for name, make in GROUPED.items()},
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutional": convolutional,
    "small": small,
    "wide": wide,
}


IN_PROCESSES = ("SGD, momentum, decay", "AdamW, groups", "accumulation, clipping")
"""Features that are also measured with a worker process. The others are computed in the simulator, by the same code."""


def largest_differences(images: Arrays, epochs: int, models: int) -> float:
    """Print the largest difference of each feature and model, and return the largest of them."""
    names = list(MODELS)[:models]
    rows, largest = list[list[str]](), 0.0
    for feature, settings in FEATURES.items():
        rows.append([feature])
        for name in names:
            job = Job(MODELS[name], images, cross_entropy, batch_size=BATCH, device="cpu", **settings)
            in_process = feature in IN_PROCESSES and name == names[0]
            found = _differences(job, epochs, in_process=in_process)
            rows[-1].append(" ".join(f"{one:g}" for one in found))
            largest = max(largest, *found)
    show(
        "largest difference of a weight from the plain loop: whole run, resumed run (and with a worker process)",
        ["feature", *names],
        rows,
    )
    return largest


def _differences(job: Job, epochs: int, *, in_process: bool) -> list[float]:
    """Return the differences of a run, of a run that is resumed from a checkpoint halfway, and of a worker process."""
    simulated = Simulated([Machine("m0", 1e-3)])
    until, half = f"epochs>={epochs}", epochs * len(job.train_data[0]) // BATCH // 2
    whole = _run(job, simulated, until)
    with TemporaryDirectory() as folder:
        _run(job, simulated, f"versions>={half}", out=Path(folder) / "run")
        runs = [whole, _run(job, simulated, until, out=Path(folder) / "run", resume="latest")]
    if in_process:
        runs.append(_run(job, Local(workers=1, threads=1), until))
    plain = PlainLoop.of(job).follow(whole)
    return [largest_difference(run.model, plain) for run in runs]


def _run(job: Job, on: Local | Simulated, until: str, **settings: Any) -> Run:
    return fit(job, Synchronous(), on, until=until, max_update_ratio=None, quiet=True, **settings)
