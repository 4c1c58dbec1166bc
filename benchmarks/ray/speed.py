"""Samples per second of two Ray workers / two local workers, in alternating blocks."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import oddlot
from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.engines.loop import drive
from oddlot.engines.ray import cluster, handles
from oddlot.engines.ray.object_chunks import joined
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.run.training import Training, prepared

WORKERS, IN_FLIGHT, ROWS = 2, 2, 4_096
COMPUTED = 0.25
"""Share of a step that is computed. The rest is a wait that simulates an accelerator."""
FEATURES = 32


def network(parameters: int) -> nn.Module:
    """Return a network with about `parameters` parameters in two square layers."""
    width = round((parameters / 2) ** 0.5)
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                         nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))  # fmt: skip


@dataclass
class Step:
    """A training step that waits and then computes."""

    wait: float
    """Seconds to wait."""

    def __call__(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of a minibatch."""
        time.sleep(self.wait)
        return mse_loss(model(batch[0]), batch[1])


def job(parameters: int, batch: int, wait: float) -> oddlot.Job:
    """Return a job with random rows."""
    chance = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, FEATURES, generator=chance), torch.randn(ROWS, 1, generator=chance)
    return oddlot.Job(
        partial(network, parameters), rows, training_step=Step(wait), optimizer=oddlot.SGD(0.001),
        batch_size=batch, device="cpu",
    )  # fmt: skip


def batch_for(parameters: int, seconds: float) -> int:
    """Return the batch size for a gradient of about `seconds` with one thread."""
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


class Driven:
    """A run that is advanced in blocks of some seconds. Its workers wait between blocks."""

    def __init__(self, training: Training) -> None:
        self.host = training.host
        self.engine: Any = training.opened.engine
        self.records: list[Record] = []
        self.arrivals = 0
        self.host.observers.append(self._note)

    def _note(self, record: Record) -> None:
        self.records.append(record)
        self.arrivals += isinstance(record.event, Arrived)

    def until(self, fact: Callable[[], bool]) -> None:
        """Run until `fact` returns True."""
        drive(self.host, self.engine, lambda: "done" if fact() else "")

    def during(self, seconds: float) -> None:
        """Run for some seconds."""
        end = time.perf_counter() + seconds
        self.until(lambda: time.perf_counter() >= end)

    def rate(self, seconds: float, workers: int = WORKERS) -> float:
        """Return the updates per second of a block. Updates that were ready before it are not counted."""
        most = self.arrivals + 3 * workers * IN_FLIGHT
        self.until(lambda: self.arrivals >= most)
        before, began = self.arrivals, time.perf_counter()
        self.during(seconds)
        return (self.arrivals - before) / (time.perf_counter() - began)


@contextmanager
def driven(task: oddlot.Job, on: Any, workers: int = WORKERS) -> Iterator[Driven]:
    """Yield a run of the job on an engine, once its workers have joined and warmed up."""
    recipe = Recipe(task, oddlot.Asynchronous(), on, RunConfig(until="epochs>=1000000"))
    with prepared(recipe) as training:
        run = Driven(training)
        run.until(lambda: len(run.host.conductor.slots) >= workers)
        run.until(lambda: run.arrivals >= 8 * workers)
        yield run


def ratios(parameters: int, seconds: float, block: float, count: int) -> list[float]:
    """Return samples per second, Ray / local, of `count` pairs of blocks. A step takes about `seconds`."""
    task = job(parameters, batch_for(parameters, COMPUTED * seconds), (1 - COMPUTED) * seconds)
    on_ray = oddlot.Ray(WORKERS, in_flight=IN_FLIGHT)
    on_local = oddlot.Local(WORKERS, threads=1, in_flight=IN_FLIGHT)
    with driven(task, on_local) as local, driven(task, on_ray) as remote:
        return [remote.rate(block) / local.rate(block) for _ in range(count)]


def copies(parameters: int, updates: int) -> tuple[float, float]:
    """Return the copies of an update's tensors on the way to the hub, and of the weights on the way to the workers."""
    task = job(parameters, 8, 0.0)
    written = {"in": 0.0, "out": 0.0}
    with driven(task, oddlot.Ray(WORKERS, in_flight=IN_FLIGHT)) as run:
        store, before = run.host.store, run.arrivals
        receive, put = store.receive, cluster.put

        def received(facts: Any, payload: Any) -> None:
            written["in"] += 1 + (not _is_in_store(payload.flat.memory.data_ptr()))
            receive(facts, payload)

        def counted(value: Any) -> Any:
            found = put(value)
            block = joined(ray.get(found))
            written["out"] += 1 + (not _is_in_store(block.ctypes.data))
            return found

        with patch.object(store, "receive", received), patch.object(handles, "put", counted):
            run.until(lambda: run.arrivals >= before + updates)
        arrived = run.arrivals - before
    return written["in"] / arrived, written["out"] / arrived


def _is_in_store(address: int) -> bool:
    """Return True if an address belongs to Ray's object store."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(number, 16) for number in line.split()[0].split("-"))
        if begin <= address < end:
            return "plasma" in line or "/dev/shm" in line
    return False
