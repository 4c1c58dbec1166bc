"""A training loop of PyTorch, as in a script, with the features of a `Job`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from oddlot.core.commands import Start
from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer
from oddlot.core.tasks import Task
from oddlot.data.batches import Indices
from oddlot.data.sample_order import Permutation, minibatches
from oddlot.data.seeding import seed_all, seed_of
from oddlot.run.result import Run
from oddlot.train.job import Job


@dataclass
class PlainLoop:
    """A training loop of PyTorch. Its job has arrays as data, and the loop shares nothing else with oddlot.

    It can train on the minibatches of a run, and with its seeds, or on its own.
    """

    job: Job
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler | None = None
    average: AveragedModel | None = None
    done: int = 0
    """Samples so far."""

    @classmethod
    def of(cls, job: Job, seed: int = 0) -> "PlainLoop":
        """Return a loop with initial weights."""
        seed_all(seed)
        model, rule = job.model(), job.optimizer
        is_rule = isinstance(rule, Optimizer)
        optimizer = torch_optimizer(rule, model.parameters()) if is_rule else rule(model)
        scheduler = job.lr_scheduler(optimizer) if job.lr_scheduler else None
        decay = job.ema_decay
        average = AveragedModel(model, multi_avg_fn=_averaging(decay)) if decay else None
        return cls(job, model, optimizer, scheduler, average)

    @property
    def size(self) -> int:
        """Samples of an epoch."""
        return len(self.job.train_data[0])

    def follow(self, run: Run, seed: int = 0) -> nn.Module:
        """Train on the minibatches of a run with one worker, and return the model."""
        order, threads = Permutation(self.size, self.size), torch.get_num_threads()
        torch.set_num_threads(1)
        for task in tasks(run):
            seed_all(seed_of(seed, task))
            for minibatch in minibatches(order, seed, task.spans, self.job.batch_size):
                self.step(minibatch.indices)
        torch.set_num_threads(threads)
        return self.result

    def train(self, epochs: int, seed: int) -> nn.Module:
        """Train on the order of samples of a run with this seed, and return the model."""
        order = Permutation(self.size, self.size)
        for epoch in range(epochs):
            indices = order.epoch(seed, epoch).indices
            for start in range(0, self.size, self.job.batch_size):
                self.step(indices[start : start + self.job.batch_size])
        return self.result

    @property
    def result(self) -> nn.Module:
        """The trained model, or its average, in evaluation mode."""
        return (self.average.module if self.average else self.model).eval()

    def step(self, indices: Indices) -> None:
        """Make one step on these samples."""
        job = self.job
        if job.lr_schedule is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * job.lr_schedule(
                    self.done / self.size
                )
        for pattern, epochs in job.unfreeze_at.items():
            for name, parameter in self.model.named_parameters():
                if fnmatchcase(name, pattern):
                    parameter.requires_grad_(self.done >= epochs * self.size)
        self.optimizer.zero_grad()
        size = job.micro_batch_size or len(indices)
        for start in range(0, len(indices), size):
            part = indices[start : start + size]
            inputs, targets = (torch.as_tensor(array)[torch.as_tensor(part)] for array in job.train_data)
            loss: Any = job.loss(self.model(inputs), targets) if job.loss else None
            (loss / (len(indices) / len(part))).backward()
        if job.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), job.max_grad_norm)
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.done += len(indices)
        self._step_scheduler()

    def _step_scheduler(self) -> None:
        by_version = self.job.lr_scheduler_every == "version"
        if isinstance(self.scheduler, ReduceLROnPlateau):
            if self.done % self.size == 0:
                self.scheduler.step(self.eval_loss())
        elif self.scheduler is not None and (by_version or self.done % self.size == 0):
            self.scheduler.step()

    @torch.no_grad()
    def eval_loss(self) -> float:
        """Return the loss on the evaluation data."""
        inputs, targets = (torch.as_tensor(array) for array in self.job.eval_data)
        self.model.eval()
        loss: Any = self.job.loss(self.model(inputs), targets) if self.job.loss else None
        self.model.train()
        return float(loss)


def tasks(run: Run) -> Iterator[Task]:
    """Yield the tasks of a run."""
    for record in run.records:
        yield from (action.task for action in record.actions if isinstance(action, Start))


def largest_difference(one: nn.Module, other: nn.Module) -> float:
    """Return the largest difference of a parameter or buffer."""
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours)


def torch_optimizer(rule: Any, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Return PyTorch's optimizer with the same name and settings as one of oddlot."""
    match rule:
        case SGD(lr, momentum, nesterov, decay):
            return torch.optim.SGD(parameters, lr, momentum, nesterov=nesterov, weight_decay=decay)
        case Adam(lr, betas, eps, decay):
            return torch.optim.Adam(parameters, lr, betas, eps, decay)
        case AdamW(lr, betas, eps, decay):
            return torch.optim.AdamW(parameters, lr, betas, eps, decay)
    raise TypeError(f"PyTorch has no {rule}")


def _averaging(decay: float) -> Any:
    return get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]  # PyTorch's
