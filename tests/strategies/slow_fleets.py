"""Small jobs on simulated machines, one of them slow."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import oddlot
from oddlot import SGD, Job, Machine, Run, Shards, Simulated, Strategy
from oddlot.machines import Trace

BATCH, PACE = 5, 0.1
"""Samples per minibatch, and seconds per sample of a typical machine."""
STRAGGLES = Trace((1.0,) * 19 + (100.0,))


def zero() -> nn.Module:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def distance(model: nn.Module, batch: Any) -> Tensor:
    """Return half the mean squared distance of the weight from the numbers. The best weight is their mean."""
    out: Tensor = 0.5 * (model(torch.ones(1, 1)).sum() - batch[0]).square().mean()
    return out


def ran(
    strategy: Strategy,
    machines: list[Machine],
    numbers: Tensor | Shards,
    until: str,
    lr: float | None = None,
    **how: Any,
) -> Run:
    """Run the strategy in the simulator. Gradients are computed only if a learning rate is given."""
    data = numbers if isinstance(numbers, Shards) else (numbers,)
    job = Job(zero, data, training_step=distance, optimizer=SGD(lr=lr or 1.0), batch_size=BATCH)
    return oddlot.fit(job, strategy, Simulated(machines, computes=lr is not None), until=until, **how)


def machines(count: int, slow: float = 1.0, **how: Any) -> list[Machine]:
    """Return equal machines, with a last machine that is `slow` times slower."""
    alike = [Machine(f"m{number}", PACE, **how) for number in range(count)]
    return [*alike[:-1], replace(alike[-1], seconds_per_sample=slow * PACE)]


def actions(run: Run, kind: type) -> list[Any]:
    return [action for record in run.records for action in record.actions if isinstance(action, kind)]
