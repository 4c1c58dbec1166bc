"""Samples per second of two Ray workers over two local workers, in alternating blocks."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import oddlot
from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.engines.loop import drive
from oddlot.run.config import RunConfig
from oddlot.run.spec import Recipe
from oddlot.run.training import Training, prepared

WORKERS, IN_FLIGHT, ROWS = 2, 2, 4_096
COMPUTED = 0.25
"""Share of a step that is computed. The rest is a wait, in place of an accelerator."""
FEATURES = 32


def network(parameters: int) -> nn.Module:
    """A network of about so many parameters in two square layers."""
    width = round((parameters / 2) ** 0.5)
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))  # fmt: skip


@dataclass
class Step:
    """A training step that computes and then waits."""

    wait: float
    """Seconds."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of a minibatch."""
        time.sleep(self.wait)
        return mse_loss(model(batch[0]), batch[1])


def job(parameters: int, batch: int, wait: float) -> oddlot.Job:
    """Return a job with random rows: only their number matters here."""
    chance = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, FEATURES, generator=chance), torch.randn(ROWS, 1, generator=chance)
    return oddlot.Job(
        partial(network, parameters), rows, training_step=Step(wait), optimizer=oddlot.SGD(0.001),
        batch_size=batch, device="cpu",
    )  # fmt: skip


def batch_for(parameters: int, seconds: float) -> int:
    """Return the batch whose gradient takes about so many seconds with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model, batch = network(parameters), 8
    for _ in range(4):
        rows, times = torch.randn(batch, FEATURES), []
        for _ in range(4):
            began = time.perf_counter()
            model(rows).sum().backward()
            times.append(time.perf_counter() - began)
        batch = max(1, min(ROWS // 8, round(batch * seconds / statistics.median(times))))
    torch.set_num_threads(threads)
    return batch


class Alternately:
    """A run that is driven for some seconds at a time. Between two blocks its workers wait."""

    def __init__(self, training: Training) -> None:
        self.host, self.engine = training.host, training.opened.engine
        self.arrivals = 0
        self.host.observers.append(self._count)

    def _count(self, record: Record) -> None:
        self.arrivals += isinstance(record.event, Arrived)

    def until(self, arrivals: int) -> None:
        """Go on until so many updates have arrived."""
        most = self.arrivals + arrivals
        drive(self.host, self.engine, lambda: "done" if self.arrivals >= most else "")

    def rate(self, seconds: float) -> float:
        """Return the updates per second of a block, without those that were ready before it."""
        self.until(3 * WORKERS * IN_FLIGHT)
        before, began = self.arrivals, time.perf_counter()
        drive(self.host, self.engine, lambda: "done" if time.perf_counter() - began >= seconds else "")
        return (self.arrivals - before) / (time.perf_counter() - began)


@contextmanager
def alternately(task: oddlot.Job, on: Any) -> Iterator[Alternately]:
    """Yield a run of the job on this engine whose workers are all there."""
    recipe = Recipe(task, oddlot.Asynchronous(), on, RunConfig(until="epochs>=1000000"))
    with prepared(recipe) as training:
        run = Alternately(training)
        drive(run.host, run.engine, lambda: "all" if len(run.host.conductor.slots) >= WORKERS else "")
        run.until(8 * WORKERS)
        yield run


def ratios(parameters: int, seconds: float, block: float, count: int) -> list[float]:
    """Return samples per second, Ray over local, of `count` pairs of blocks with steps of so many seconds."""
    task = job(parameters, batch_for(parameters, COMPUTED * seconds), (1 - COMPUTED) * seconds)
    on_ray = oddlot.Ray(WORKERS, in_flight=IN_FLIGHT)
    on_local = oddlot.Local(WORKERS, threads=1, in_flight=IN_FLIGHT)
    found = []
    with alternately(task, on_local) as local, alternately(task, on_ray) as ray:
        for _ in range(count):
            ours, theirs = ray.rate(block), local.rate(block)
            print(f"{parameters:,} parameters, {seconds * 1e3:g} ms: Ray {ours:.2f}, local {theirs:.2f} steps/s", flush=True)
            found.append(ours / theirs)
    return found
