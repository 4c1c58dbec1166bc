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
from oddlot.workloads.recommender.losses import NEGATIVES
from oddlot.workloads.recommender.metrics import measured

RATES = {"sgd": (1.0, 3.0, 10.0, 30.0, 100.0), "adam": (0.001, 0.003, 0.01)}
"""Learning rates to choose from, from the middle up or down. With momentum m, they are multiplied by 1 - m."""
PATIENCE = 3
"""Number of evaluations without an improvement after which a training ends."""
LOW, HIGH = 5.0, 95.0
"""Percentiles of the numbers of blocks, for the thresholds of SAROS."""
MOMENTUM = 0.9
METHODS = {
    "bpr": Recipe("bpr"),
    "saros_b": Recipe("saros"),
    "saros_m": Recipe("saros", momentum=MOMENTUM),
    "saros_open": Recipe("saros"),
    "softmax": Recipe("softmax"),
    "attention": Recipe("softmax", "attention", context=20, optimizer="adam", dense_items=2_000, active=100),
}
"""Recipe of each method, without its tuned settings and its thresholds."""
WITH_THRESHOLDS = ("saros_b", "saros_m")


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
    """The settings and the epochs of a method, chosen on the block before the test block."""

    recipe: Recipe
    epochs: int
    value: float
    """NDCG@10 on the validation blocks."""


def tuned(name: str, parts: Split, most_epochs: int) -> Tuned:
    """Return the best learning rate, number of epochs and, for BPR, negatives of a method.

    The last training blocks are held out. The search starts at the middle rate, and at the best rate of the first kind
    of negatives for the second kind. It goes up, and then down, as long as the metric improves.
    """
    validation, base = split(parts.train), METHODS[name]
    rates, found = RATES[base.optimizer], dict[tuple[str, int], Tuned]()

    def value(negatives: str, at: int) -> float:
        if not 0 <= at < len(rates):
            return -inf
        if (negatives, at) not in found:
            recipe = replace(base, lr=rates[at] * (1 - base.momentum), negatives=negatives)
            job = job_of(validation, with_thresholds(name, recipe, validation))
            course = train(job, most_epochs, 0, stops=True)
            found[negatives, at] = Tuned(recipe, course.best + 1, course.values[course.best])
        return found[negatives, at].value

    at = len(rates) // 2
    for negatives in NEGATIVES if base.loss == "bpr" else NEGATIVES[:1]:
        for step in (1, -1):
            while value(negatives, at + step) > value(negatives, at):
                at += step
    return max(found.values(), key=lambda one: one.value)


def with_thresholds(name: str, recipe: Recipe, parts: Split) -> Recipe:
    """Return the recipe with the thresholds of the training part, for SAROS_b and SAROS_m."""
    if name not in WITH_THRESHOLDS:
        return recipe
    return replace(recipe, thresholds=thresholds_of(parts.train, LOW, HIGH))
