"""Learning rate schedules and gradient clipping with every strategy, compared with plain PyTorch."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from oddlot import SGD, ElasticAveraging, Job, Run, Strategy, strategies
from oddlot.core.commands import Action, Blend, Start, Step
from oddlot.core.events import Arrived
from oddlot.core.sample_spans import minibatch_cuts, samples_in
from oddlot.core.tasks import Task
from oddlot.data.batches import order
from oddlot.lr_schedules import Cosine
from oddlot.strategies.registry import BY_NAME
from tests.fits import (
    BATCH,
    SAMPLES,
    a_job,
    distance,
    equals,
    everything,
    fleet,
    in_batches,
    local,
    trained,
)

pytestmark = pytest.mark.usefixtures("fork_server")

EPOCHS, FLOOR, CLIP = 3, 0.1, 0.25
ONE: dict[str, tuple[Strategy, dict[str, Any]]] = {
    "synchronous": (strategies.Synchronous(), {"optimizer": SGD(0.1, momentum=0.9)}),
    "fastest_k": (strategies.FastestK(k=1), {"optimizer": SGD(0.1, momentum=0.9, nesterov=True)}),
    "adaptive_k": (strategies.AdaptiveK(), {"optimizer": SGD(0.1, momentum=0.9)}),
    "adaptive_load": (strategies.AdaptiveLoad(((1, BATCH, 1.0),)), {"optimizer": SGD(0.1, momentum=0.9)}),
    "asynchronous": (strategies.Asynchronous(), {"optimizer": SGD(0.1, 0.9, weight_decay=0.01)}),
    "local_sgd": (strategies.LocalSGD(steps=3), {}),
    "quorum": (strategies.Quorum(strategies.LocalSGD(steps=3)), {}),
    "federated_averaging": (strategies.FederatedAveraging(), {}),
    "downpour": (strategies.Downpour(steps=2), {}),
    "vc_asgd": (strategies.VCASGD(alpha=0.0), {}),
    "elastic_averaging": (ElasticAveraging(steps=2, rate=0.4), {}),
}
"""Settings that equal a plain loop over batches with one worker. Elastic averaging also pulls worker and model
together."""


REAL = {"asynchronous", "local_sgd", "vc_asgd", "elastic_averaging"}
"""Strategies with each kind of task. They also run on a local worker."""


def scheduled(**changes: Any) -> Job:
    return a_job(**{
        "optimizer": SGD(0.1), "lr_schedule": Cosine(EPOCHS, floor=FLOOR), "max_grad_norm": CLIP, **changes
    })  # fmt: skip


def learn(job: Job, model: nn.Module, rows: Any) -> None:
    """Compute the gradient of these samples in `grad` of the model's parameters."""
    model.zero_grad()
    batch = tuple(part[torch.from_numpy(rows.copy())] for part in job.train_data)
    job.batch_loss(model, batch).backward()  # type: ignore[no-untyped-call]  # PyTorch's


def clip(job: Job, model: nn.Module) -> None:
    if job.max_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), job.max_grad_norm)


def optimizer_of(job: Job, model: nn.Module) -> torch.optim.SGD:
    rule = job.optimizer
    assert isinstance(rule, SGD)
    return torch.optim.SGD(
        model.parameters(), rule.lr, rule.momentum, nesterov=rule.nesterov, weight_decay=rule.weight_decay
    )


def move(target: nn.Module, parts: Sequence[tuple[float, nn.Module]]) -> None:
    """Set the target to the weighted sum of models."""
    with torch.no_grad():
        theirs = [[share * parameter for parameter in model.parameters()] for share, model in parts]
        sums = [torch.stack(terms).sum(dim=0) for terms in zip(*theirs, strict=True)]
        for parameter, total in zip(target.parameters(), sums, strict=True):
            parameter.copy_(total)


def plain(job: Job, meet_every: int = 0, rate: float = 0.0) -> nn.Module:
    """Train in a plain loop with PyTorch's scheduler and gradient clipping."""
    torch.manual_seed(0)
    model = job.model()
    centre = deepcopy(model)
    optimizer = optimizer_of(job, model)
    batches = [span for (span,) in in_batches(SAMPLES, BATCH, EPOCHS)]
    eta_min = FLOOR * optimizer.param_groups[0]["lr"]
    scheduler = CosineAnnealingLR(optimizer, len(batches), eta_min) if job.lr_schedule else None
    for step, (epoch, start, stop) in enumerate(batches, 1):
        learn(job, model, order(0, epoch, SAMPLES)[start:stop])
        clip(job, model)
        optimizer.step()
        if scheduler:
            scheduler.step()
        if meet_every and step % meet_every == 0:
            both = deepcopy(model), deepcopy(centre)
            move(model, [(1 - rate, both[0]), (rate, both[1])])
            move(centre, [(rate, both[0]), (1 - rate, both[1])])
    return centre if meet_every else model


@pytest.mark.parametrize(
    "name", [*(name for name, kind in BY_NAME.items() if not kind().traits(1).mesh), "quorum"]
)
def test_one_worker_matches_pytorch_scheduler_and_clipping(name: str) -> None:
    strategy, changes = ONE[name]
    meet: dict[str, Any] = {"meet_every": 2, "rate": 0.4} if name == "elastic_averaging" else {}
    job = scheduled(**changes)
    expected = plain(job, **meet)
    places = (fleet(1), local(1)) if name in REAL else (fleet(1),)
    runs = [trained(job, deepcopy(strategy), on, f"epochs>={EPOCHS}")[0] for on in places]
    assert distance(runs[0].model, runs[-1].model) < 1e-7
    for run in runs:
        assert distance(run.model, expected) < 1e-6
    for without in ({"lr_schedule": None}, {"max_grad_norm": None}):
        assert distance(plain(scheduled(**changes | without), **meet), expected) > 1e-3, (
            "each of them matters"
        )


# --- several workers -----------------------------------------------------------------------------


class Again:
    """A repetition of a run's merges in order, with PyTorch only and an independent count of merged samples."""

    def __init__(self, job: Job, shards: int = 1) -> None:
        torch.manual_seed(0)
        self.job, self.shards, self.merged = job, shards, 0
        self.model = job.model()
        self.optimizer = optimizer_of(job, self.model)
        self.versions, self.given = [deepcopy(self.model)], dict[str, Task]()
        self.brought, self.homes = dict[str, nn.Module](), dict[str, nn.Module]()

    def factor(self, merged: int) -> float:
        assert self.job.lr_schedule is not None
        return self.job.lr_schedule(merged / SAMPLES)

    def follow(self, run: Run) -> nn.Module:
        for record in run.records:
            if isinstance(record.event, Arrived):
                task = self.given[record.event.update.id]
                self.brought[task.id] = (self.gradient if task.kind == "gradient" else self.local)(task)
            for action in record.actions:
                self.act(action)
        return self.model

    def act(self, action: Action) -> None:
        if isinstance(action, Start):
            assert action.task.merged == self.merged
            self.given[action.task.id] = action.task
        if isinstance(action, Step | Blend):
            tasks = [self.given[update] for update in action.shares]
            shares = list(action.shares.values())
            if isinstance(action, Step):
                assert action.merged == (self.merged if tasks[0].kind == "gradient" else None)
            if isinstance(action, Step) and tasks[0].kind == "gradient":
                self.step(tasks, shares)
            elif isinstance(action, Step):
                starts = [self.versions[task.version] for task in tasks]
                ends = [self.brought[task.id] for task in tasks]
                parts = [(-share, start) for share, start in zip(shares, starts, strict=True)]
                move(self.model, [(1.0, deepcopy(self.model)), *parts, *zip(shares, ends, strict=True)])
            else:
                ends = [self.brought[task.id] for task in tasks]
                move(self.model, [(1 - sum(shares), deepcopy(self.model)), *zip(shares, ends, strict=True)])
            self.merged += sum(samples_in(task.spans) for task in tasks)
            self.versions.append(deepcopy(self.model))

    def step(self, tasks: Sequence[Task], shares: Sequence[float]) -> None:
        """Step with the learning rate factor for the samples merged before."""
        sums = [torch.zeros_like(parameter) for parameter in self.model.parameters()]
        for task, share in zip(tasks, shares, strict=True):
            for total, gradient in zip(sums, self.brought[task.id].parameters(), strict=True):
                total.add_(gradient.detach(), alpha=share)
        for parameter, total in zip(self.model.parameters(), sums, strict=True):
            parameter.grad = total / sum(shares)
        clip(self.job, self.model)
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad *= sum(shares)
        rule = self.job.optimizer
        self.optimizer.param_groups[0]["lr"] = rule.lr * self.factor(self.merged)
        self.optimizer.step()

    def batches(self, task: Task) -> Iterator[Any]:
        rows = [
            row
            for epoch, start, stop in task.spans
            for row in order(0, epoch, SAMPLES, self.shards)[start:stop]
        ]
        cuts = minibatch_cuts(len(rows), self.job.batch_size)
        for start, stop in pairwise(cuts):
            yield torch.tensor(rows[start:stop]).numpy()

    def gradient(self, task: Task) -> nn.Module:
        """Return the mean of the minibatches' gradients, as a module with gradients instead of weights."""
        model, found = deepcopy(self.versions[task.version]), deepcopy(self.model)
        sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for rows in self.batches(task):
            learn(self.job, model, rows)
            for total, parameter in zip(sums, model.parameters(), strict=True):
                assert parameter.grad is not None
                total.add_(parameter.grad, alpha=len(rows) / samples_in(task.spans))
        with torch.no_grad():
            for parameter, total in zip(found.parameters(), sums, strict=True):
                parameter.copy_(total)
        return found

    def local(self, task: Task) -> nn.Module:
        """Take local steps with the factor for the samples merged before the task, plus the samples of the task."""
        model = deepcopy(self.versions[task.version])
        if task.pull is not None and task.node in self.homes:
            move(model, [(task.pull, deepcopy(model)), (1 - task.pull, self.homes[task.node])])
        optimizer, seen = optimizer_of(self.job, model), task.merged or 0
        for rows in self.batches(task):
            learn(self.job, model, rows)
            clip(self.job, model)
            optimizer.param_groups[0]["lr"] = self.job.optimizer.lr * self.factor(seen)
            optimizer.step()
            seen += len(rows)
        if task.pull is not None:
            self.homes[task.node] = model
        return model


MANY: list[Callable[[], Strategy]] = [
    lambda: strategies.Synchronous(samples=20),
    lambda: strategies.FastestK(k=2),
    strategies.Asynchronous,
    lambda: strategies.LocalSGD(steps=2),
    strategies.FederatedAveraging,
    lambda: strategies.Downpour(steps=2),
    strategies.VCASGD,
    lambda: ElasticAveraging(steps=2),
]


@pytest.mark.parametrize("make", MANY, ids=lambda make: type(make()).__name__)
def test_learning_rate_of_several_workers_follows_merged_samples(make: Callable[[], Strategy]) -> None:
    shards = 4 if type(make()) in {strategies.FederatedAveraging, strategies.VCASGD} else 1
    job = scheduled(optimizer=SGD(0.1, momentum=0.5), lr_schedule=Cosine(EPOCHS, 0.5, FLOOR))
    run, state = trained(job, make(), fleet(3), f"epochs>={EPOCHS}", shards=shards)
    assert sorted(state.merged) == everything(SAMPLES, EPOCHS)
    assert distance(run.model, Again(job, shards).follow(run)) < 1e-5


def test_learning_rate_is_independent_of_the_number_of_workers() -> None:
    """Learning rates of the hub's steps depend on the samples merged before."""
    found = []
    for workers in (1, 2, 3):
        run, _ = trained(scheduled(), strategies.Synchronous(), equals(workers), f"epochs>={EPOCHS}")
        steps = [action for record in run.records for action in record.actions if isinstance(action, Step)]
        found.append([step.merged for step in steps])
    assert found == [list(range(0, EPOCHS * SAMPLES, BATCH * workers)) for workers in (1, 2, 3)]
