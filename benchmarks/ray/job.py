"""The job of the parts with lost nodes, in a separate module, so that workers do not import the benchmark."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import oddlot
from oddlot.workloads.digits import digits

BATCH, STEP_SECONDS, COMPUTED = 32, 0.2, 0.25
"""Samples of a minibatch, seconds of a step, and its computed share. It waits for the rest, like for an accelerator."""
WIDTH, WORKERS = 1_000, 2
TARGET, EVERY = 0.95, 10
"""Accuracy to reach, and number of minibatches between evaluations."""
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Rate:
    """Learning rate and momentum of SGD."""

    lr: float = 0.05
    momentum: float = 0.9

    def __str__(self) -> str:
        return f"{self.lr:g}, {self.momentum:g}"


def network() -> nn.Module:
    """Return a network with about a million parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
                         nn.Linear(WIDTH, 10))  # fmt: skip


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of a minibatch."""
    return cross_entropy(model(batch[0].float() / 16), batch[1])


@dataclass
class Step:
    """A training step that computes and then waits. It writes its start time to a file of its process.

    An evaluation does neither.
    """

    notes: Path
    seconds: float = STEP_SECONDS

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a minibatch."""
        if not model.training:
            return loss(model, batch)
        began = time.perf_counter()
        with (self.notes / str(os.getpid())).open("a") as file:
            file.write(f"{time.time()}\n")
        found = loss(model, batch)
        some = torch.ones(64, 64)
        while time.perf_counter() - began < COMPUTED * self.seconds:
            some = some @ some / 64
        time.sleep((1 - COMPUTED) * self.seconds)
        return found


def outputs(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return outputs and labels for the accuracy."""
    return model(batch[0].float() / 16), batch[1]


def job(step: Callable[[nn.Module, Batch], Tensor], rate: Rate = Rate()) -> oddlot.Job:
    """Return the job on the packaged digits."""
    given = digits()
    return oddlot.Job(
        network, given.train_data, training_step=step, eval_data=given.eval_data,
        metrics={"accuracy": oddlot.accuracy}, predict=outputs, optimizer=oddlot.SGD(rate.lr, momentum=rate.momentum),
        batch_size=BATCH, name="digits", device="cpu",
    )  # fmt: skip


def begun_by_worker(notes: Path) -> list[list[float]]:
    """Return the start times of each worker's steps, in Unix seconds."""
    lines = (file.read_text().split() for file in notes.iterdir())
    return [[float(line) for line in some] for some in lines if some]


def begun(notes: Path) -> list[float]:
    """Return the start times of all steps in ascending order, in Unix seconds."""
    return sorted(chain.from_iterable(begun_by_worker(notes)))


def step_rate(by_worker: Sequence[Sequence[float]]) -> float:
    """Return the steps per second, counted from the time when all workers have started a step."""
    start, end = max(min(some) for some in by_worker), max(map(max, by_worker))
    return sum(one > start for some in by_worker for one in some) / (end - start)
