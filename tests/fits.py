"""Small jobs and fleets, checked runs, and plain PyTorch loops to compare with.

Workers import this module, so it must not import pytest or test modules.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from oddlot import SGD, Job, Local, Machine, Ray, Simulated, Strategy
from oddlot.core.commands import Blend, Start, Step
from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.core.sample_spans import Span, split
from oddlot.data.batches import order
from oddlot.engines.local.worker import Worker
from oddlot.history.audit import prove
from oddlot.history.callback import RecordFunction
from oddlot.history.replay import compare, replay
from oddlot.history.run_folder import RunFolder
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.run.result import Run
from oddlot.run.training import prepared
from oddlot.testing.state_checks import StateChecks

SAMPLES, BATCH = 48, 8
Place = Local | Ray | Simulated


def rows(count: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """Return random points of the plane, and for each point its side of a line (0 or 1)."""
    points = torch.randn(count, 2, generator=torch.Generator().manual_seed(5))
    return points, (points @ torch.tensor([1.0, -2.0]) > 0).long()


def net() -> nn.Module:
    """Return a small network with an odd number of parameters."""
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))


def a_job(model: Callable[[], nn.Module] = net, count: int = SAMPLES, **changes: Any) -> Job:
    """Return a job that learns each point's side of a line."""
    rule = SGD(0.1, momentum=0.9)
    return replace(
        Job(model, rows(count), cross_entropy, batch_size=BATCH, optimizer=rule, device="cpu"), **changes
    )


class Counts(nn.Module):
    """A weight for each sample, which is the sample's loss."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(samples, dtype=torch.float64))

    def forward(self, samples: Tensor) -> Tensor:
        return self.weight[samples]


def counting_job(samples: int) -> Job:
    """Return a job whose negative weights count how often each sample was merged by a sum of full updates."""
    data = torch.arange(samples), torch.zeros(samples)
    return Job(partial(Counts, samples), data, _mean, batch_size=BATCH, optimizer=SGD(BATCH), device="cpu")


def _mean(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs.mean()


def fleet(count: int = 2, **settings: Any) -> Simulated:
    """Return a simulated fleet of machines with unequal speeds."""
    return Simulated([Machine(f"m{i}", 0.01 * (1 + i / 4)) for i in range(count)], **settings)


def equals(count: int) -> Simulated:
    """Return a simulated fleet of machines with equal speeds."""
    return Simulated([Machine(f"m{i}", 0.01) for i in range(count)])


def local(workers: int = 2, **settings: Any) -> Local:
    """Return an engine with local workers of one thread each."""
    return Local(workers, threads=1, **settings)


def this_worker() -> Worker:
    """Find the worker on the call stack. Call this from a worker's task."""
    frame = sys._getframe()
    while not isinstance(frame.f_locals.get("self"), Worker):
        assert frame.f_back, "this is no worker"
        frame = frame.f_back
    worker: Worker = frame.f_locals["self"]
    return worker


def trained(
    job: Job,
    strategy: Strategy,
    on: Place,
    until: str = "epochs>=2",
    folder: RunFolder | None = None,
    resume: bool = False,
    new_segment: bool = False,
    callbacks: Sequence[RecordFunction] = (),
    **settings: Any,
) -> tuple[Run, StateChecks]:
    """Run a job, and return the run and its state checks.

    The state is checked after each record. At the end, the log must prove the same samples and replay without a
    difference.
    """
    state = StateChecks()
    recipe = Recipe(job, strategy, on, RunConfig(until=until, **settings))
    with prepared(recipe, folder, resume, new_segment) as run:

        def check(record: Record) -> None:
            state.note(record, run.host.conductor)
            faults = list(state.faults(run.host.conductor))
            assert not faults, f"after {record.event}: {'; '.join(map(str, faults[:5]))}"
            host = run.host
            out = {task for tasks in host.conductor.busy.values() for task in tasks}
            assert host.holds.keys() <= out, "a version is held for no other than a task that is out"
            needed = len(host.holds) + len(host.evaluating) + sum(host.conductor.kept.values())
            if on.computes:  # a moving average is copied, and needs no version
                assert sum(run.store._holds.values()) == needed - len(run.store._averages)

        for record in run.saving.earlier:
            state.note(record, run.host.conductor)
        run.host.observers.append(check)
        run.start_callbacks(callbacks)
        result = run.run()
    records = result.records
    proof = prove(records, recipe.samples)
    assert not proof.faults
    assert proof.merged + proof.skipped == len(state.merged)
    assert proof.skipped == result.summary["samples_skipped"]
    again = replay(folder.path, type(strategy)) if folder else compare(recipe.conductor(), enumerate(records))
    assert not again.difference, str(again.difference)
    return result, state


def everything(size: int, epochs: int) -> list[tuple[int, int]]:
    """Return all (epoch, position) pairs of these epochs."""
    return [(epoch, position) for epoch in range(epochs) for position in range(size)]


def merges(records: Sequence[Record]) -> Iterator[list[Span]]:
    """Yield the spans of samples of each merge of a run."""
    given: dict[str, tuple[Span, ...]] = {}
    for record in records:
        if isinstance(record.event, Arrived) and record.event.update.id in given:
            update = record.event.update
            given[update.id] = split(given[update.id], update.samples)[0]
        for action in record.actions:
            if isinstance(action, Start):
                given[action.task.id] = action.task.spans
            elif isinstance(action, Step | Blend):
                yield [span for update in action.shares for span in given[update]]


def plain_loop(job: Job, batches: Sequence[Sequence[Span]], seed: int = 0) -> nn.Module:
    """Train the job with PyTorch alone: one optimizer, and one step for each batch."""
    torch.manual_seed(seed)
    model = job.model()
    assert isinstance(job.optimizer, SGD)
    optimizer = torch.optim.SGD(model.parameters(), job.optimizer.lr, job.optimizer.momentum)
    for spans in batches:
        chosen = torch.from_numpy(
            np.concatenate([order(seed, epoch, len(job.train_data[0]))[a:b] for epoch, a, b in spans])
        )
        optimizer.zero_grad()
        job.batch_loss(model, tuple(part[chosen] for part in job.train_data)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def in_batches(size: int, batch: int, epochs: int) -> list[list[Span]]:
    """Return the batches of complete epochs, in order."""
    return [
        [Span(epoch, at, min(at + batch, size))] for epoch in range(epochs) for at in range(0, size, batch)
    ]


def distance(one: nn.Module, other: nn.Module) -> float:
    """Return the largest absolute difference between the numbers of two models."""
    ours, theirs = one.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours)
