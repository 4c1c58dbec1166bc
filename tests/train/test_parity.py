"""One worker and `synchronous` train as a plain PyTorch loop does, bit for bit."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from oddlot import SGD, Adam, AdamW, FederatedAveraging, Job, Machine, Simulated, Strategy, Synchronous, fit
from oddlot.core.commands import Start
from oddlot.core.tasks import Task
from oddlot.data.batches import Indices
from oddlot.data.sample_order import Permutation, minibatches
from oddlot.data.seeding import seed_all, seed_of
from oddlot.run.result import Run
from tests.torch_optimizers import torch_optimizer

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


def one_cycle(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100, cycle_momentum=False)


def halving(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


@dataclass
class PlainLoop:
    """A training loop of PyTorch, as in a script. It gets only the minibatches of a run, and its seeds."""

    job: Job
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler | None = None
    average: AveragedModel | None = None

    @classmethod
    def of(cls, job: Job) -> "PlainLoop":
        seed_all(0)
        model, rule = job.model(), job.optimizer
        optimizer = torch_optimizer(rule, model.parameters()) if hasattr(rule, "lr") else rule(model)
        scheduler = job.lr_scheduler(optimizer) if job.lr_scheduler else None
        decay = job.ema_decay
        average = AveragedModel(model, multi_avg_fn=ema(decay)) if decay else None
        return cls(job, model, optimizer, scheduler, average)

    def step(self, indices: Indices) -> None:
        """Make one step on these samples."""
        job, (inputs, targets) = self.job, self.job.train_data
        size = job.micro_batch_size or len(indices)
        self.optimizer.zero_grad()
        for start in range(0, len(indices), size):
            part = indices[start : start + size]
            loss = cross_entropy(self.model(inputs[part]), targets[part])
            (loss / (len(indices) / len(part))).backward()  # type: ignore[no-untyped-call]  # PyTorch's
        if job.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), job.max_grad_norm)
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        if self.scheduler is not None and job.lr_scheduler_every == "version":
            self.scheduler.step()

    def train(self, run: Run) -> nn.Module:
        """Train on the minibatches of a run."""
        threads, done, order = torch.get_num_threads(), 0, Permutation(SAMPLES, SAMPLES)
        torch.set_num_threads(1)
        for task in tasks(run):
            seed_all(seed_of(0, task))
            for minibatch in minibatches(order, 0, task.spans, self.job.batch_size):
                self.step(minibatch.indices)
                done += minibatch.positions
            if self.scheduler is not None and self.job.lr_scheduler_every == "epoch" and done % SAMPLES == 0:
                self.scheduler.step()
        torch.set_num_threads(threads)
        return (self.average.module if self.average else self.model).eval()


def tasks(run: Run) -> Iterator[Task]:
    """Yield the tasks of a run."""
    for record in run.records:
        yield from (action.task for action in record.actions if isinstance(action, Start))


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    """Return the largest difference of a parameter or buffer."""
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours)


def trained(job: Job, strategy: Strategy | None = None) -> tuple[Run, nn.Module]:
    """Return the run of one worker, and the model of the plain loop."""
    engine = Simulated([Machine("m0", 0.001)])
    run = fit(job, strategy or Synchronous(), engine, until="epochs>=4", max_update_ratio=None, quiet=True)
    return run, PlainLoop.of(job).train(run)


def ema(decay: float) -> Any:
    return get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]  # PyTorch's


def a_job(**settings: Any) -> Job:
    return Job(net, rows(), cross_entropy, batch_size=BATCH, device="cpu", **settings)


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
    "averaged": {"optimizer": by_layer, "ema_decay": 0.9},
    "schedule_of_epochs": {"optimizer": by_layer, "lr_scheduler": halving},
    "schedule_of_versions": {
        "optimizer": by_layer,
        "lr_scheduler": one_cycle,
        "lr_scheduler_every": "version",
    },
}


@pytest.mark.parametrize("name", JOBS)
def test_one_worker_equals_a_plain_loop(name: str) -> None:
    run, model = trained(a_job(**JOBS[name]))
    assert largest_difference(run.model, model) == 0


@pytest.mark.parametrize("name", ["sgd_momentum", "groups", "clipped", "accumulated", "schedule_of_epochs"])
def test_local_steps_equal_a_plain_loop(name: str) -> None:
    job = a_job(**JOBS[name], keep_optimizer=True)
    run, model = trained(job, FederatedAveraging())
    assert largest_difference(run.model, model) == 0
