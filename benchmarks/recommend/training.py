"""The methods, their tuning on an earlier block, and a plain training loop with times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import process_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.core.optimizers import SGD
from oddlot.train.job import Job
from oddlot.workloads.recommend import Recipe, job_of
from oddlot.workloads.recommender.blocks import Split, split, thresholds_of
from oddlot.workloads.recommender.metrics import measured

RATES = {"sgd": (10.0, 30.0, 100.0), "adam": (0.001, 0.003, 0.01)}
"""Learning rates to choose from. With momentum m, they are multiplied by 1 - m."""
PATIENCE = 3
"""Number of evaluations without an improvement after which a training ends."""
LOW, HIGH = 5.0, 95.0
"""Percentiles of the numbers of blocks, for the thresholds of SAROS."""
MOMENTUM = 0.9
METHODS = {
    "bpr": Recipe("bpr"),
    "saros_b": Recipe("saros"),
    "saros_m": Recipe("saros", momentum=MOMENTUM),
    "softmax": Recipe("softmax"),
    "attention": Recipe("softmax", "attention", context=20, optimizer="adam", dense_items=2_000, active=100),
}
"""Recipe of each method, without its learning rate and, for SAROS, without its thresholds."""


@dataclass(frozen=True)
class Course:
    """The metrics of a training after each epoch, and the processor time of its steps."""

    metrics: Sequence[Mapping[str, float]]
    seconds: Sequence[float]
    """Processor time until the end of each epoch, without evaluations."""
    model: Any

    @property
    def values(self) -> list[float]:
        """NDCG@10 by full ranking after each epoch."""
        return [one["ndcg10"] for one in self.metrics]

    @property
    def best(self) -> int:
        """Index of the epoch with the largest NDCG@10."""
        return int(np.argmax(self.values))

    @property
    def seconds_to_95(self) -> float:
        """Processor time until 95 % of the largest NDCG@10."""
        values = self.values
        return next(at for one, at in zip(values, self.seconds, strict=True) if one >= 0.95 * max(values))


def train(job: Job, epochs: int, seed: int, *, stops: bool = False) -> Course:
    """Train a job in this process, step by step, and evaluate it after each epoch.

    With `stops`, end after `PATIENCE` epochs without an improvement.
    """
    torch.manual_seed(seed)
    model, random, metrics, seconds = job.model(), np.random.default_rng(seed), [], []
    optimizer, elapsed = _optimizer(job, model), 0.0
    for epoch in range(epochs):
        model.train()
        started, order = process_time(), random.permutation(len(job.train_data))
        for first in range(0, len(order), job.batch_size):
            _step(job, model, optimizer, order[first : first + job.batch_size])
        elapsed += process_time() - started
        metrics.append(evaluated(job, model))
        seconds.append(elapsed)
        best = int(np.argmax([one["ndcg10"] for one in metrics]))
        if stops and epoch - best >= PATIENCE:
            break
    return Course(metrics, seconds, model)


def _optimizer(job: Job, model: torch.nn.Module) -> torch.optim.Optimizer:
    settings = job.optimizer
    if isinstance(settings, SGD):
        return torch.optim.SGD(model.parameters(), settings.lr, settings.momentum)
    return torch.optim.Adam(model.parameters(), settings.lr)


def _step(job: Job, model: torch.nn.Module, optimizer: Any, users: NDArray[np.int64]) -> None:
    loss = job.weighted_loss(model, job.train_data.__getitems__(users))
    if not loss.weight:
        return
    optimizer.zero_grad()
    loss.mean.backward()  # type: ignore[no-untyped-call]  # PyTorch's
    for each in model.parameters():
        if each.grad is not None and each.grad.is_sparse:
            each.grad = each.grad.to_dense()
    optimizer.step()


def evaluated(job: Job, model: Any) -> dict[str, float]:
    """Return the metrics of a model."""
    model.eval()
    with torch.no_grad():
        is_candidate = job.predict.is_candidate  # type: ignore[union-attr]  # a Prediction
        return measured(job.eval_data, is_candidate, lambda batch: model.scores(model.history(batch)))


@dataclass(frozen=True)
class Tuned:
    """The learning rate and the epochs of a method, chosen on the block before the test block."""

    recipe: Recipe
    epochs: int
    value: float
    """NDCG@10 on the validation blocks."""


def tuned(name: str, parts: Split, most_epochs: int) -> Tuned:
    """Return the best learning rate and number of epochs of a method: with the last training blocks held out."""
    validation, base = split(parts.train), METHODS[name]
    best = Tuned(base, 1, -inf)
    for rate in RATES[base.optimizer]:
        recipe = replace(base, lr=rate * (1 - base.momentum))
        course = train(
            job_of(validation, with_thresholds(name, recipe, validation)), most_epochs, 0, stops=True
        )
        if (value := course.values[course.best]) > best.value:
            best = Tuned(recipe, course.best + 1, value)
    return best


def with_thresholds(name: str, recipe: Recipe, parts: Split) -> Recipe:
    """Return the recipe with the thresholds of the training part, for SAROS."""
    if not name.startswith("saros"):
        return recipe
    return replace(recipe, thresholds=thresholds_of(parts.train, LOW, HIGH))
