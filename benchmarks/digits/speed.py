"""Times and bytes of exact rounds on this machine, and by simulation on up to 64 machines."""

import time
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks import plots
from benchmarks.report import Size, show
from oddlot import SGD, Job, Local, Machine, Run, Simulated, Synchronous, fit
from oddlot.core.commands import Step
from oddlot.core.events import Arrived
from oddlot.core.sum_tree import CHUNK
from oddlot.core.tasks import Facts
from oddlot.engines.base import cores
from oddlot.machines import Hub, Link
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.payload import Payload
from oddlot.model.weight_store import WeightStore
from oddlot.planner.run_shape import RunShape
from oddlot.report.svg_charts import Line

WIDTHS = (784, 1000, 500, 250, 10)
FULL_BATCH = 60_000
"""Samples of a simulated round: MNIST, as in the paper."""
MAPPERS = (1, 2, 4, 8, 16, 32, 64)
LINK = Link(megabits_per_second=10_000, latency_milliseconds=0.2)
"""The network of the simulation: 10 Gbit/s."""
FIRST_ROUNDS = 2
"""Rounds that are not measured: workers join, and memory is used for the first time."""


@dataclass(frozen=True)
class Rounds:
    """The measured rounds of a run."""

    seconds: float
    """Median time of a round, in seconds."""
    bytes_up: float
    """Mean bytes of the updates of a round."""
    compute_seconds: float
    """Mean seconds of a worker for a sample."""


def network() -> nn.Module:
    """Return the paper's classifier."""
    layers: list[nn.Module] = []
    for width, above in pairwise(WIDTHS):
        layers += [nn.Linear(width, above), nn.Sigmoid()]
    return nn.Sequential(*layers[:-1])


def job(samples: int, batch: int) -> Job:
    """Return a job with noise as images. A step takes as long as with digits."""
    noise = np.random.default_rng(0)
    images = noise.random((samples, WIDTHS[0]), dtype=np.float32)
    labels = noise.integers(0, WIDTHS[-1], samples)
    return Job(network, (images, labels), cross_entropy, batch_size=batch, optimizer=SGD(0.1), device="cpu")


def measured(round_samples: int, rounds: int, workers: int, *, exact: bool) -> Rounds:
    """Return the rounds of a run on worker processes with one thread each.

    Without `exact`, each worker computes its share of the same batch as one minibatch.
    """
    batch = round_samples if exact else round_samples // workers
    run = fit(
        job(round_samples * 4, batch),
        Synchronous(exact=exact),
        Local(workers, threads=1),
        until=f"versions>={rounds + FIRST_ROUNDS}",
        quiet=True,
    )
    return _rounds(run, round_samples)


def _rounds(run: Run, round_samples: int) -> Rounds:
    ends = [record.now for record in run.records for one in record.actions if isinstance(one, Step)]
    first = ends[FIRST_ROUNDS - 1]
    updates = [
        record.event.update
        for record in run.records
        if isinstance(record.event, Arrived) and record.now > first
    ]
    rounds = len(ends) - FIRST_ROUNDS
    return Rounds(
        median(after - before for before, after in pairwise(ends[FIRST_ROUNDS - 1 :])),
        sum(update.bytes_up for update in updates) / rounds,
        sum(update.seconds["compute"] for update in updates) / (rounds * round_samples),
    )


def figures(size: Size, *, is_saved: bool) -> dict[str, float]:
    """Print the times, and return the figures of speed and bytes. The runs to compare alternate."""
    samples, rounds, repeats = size.pick(256, 4_096, 4_096), size.pick(2, 5, 10), size.pick(1, 3, 5)
    counts = sorted({1, min(2, cores()), cores()})
    kinds = [(workers, exact) for workers in counts for exact in (True, False)]
    runs: dict[tuple[int, bool], list[Rounds]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for workers, exact in kinds:
            runs[workers, exact].append(measured(samples, rounds, workers, exact=exact))
    seconds = {kind: median(one.seconds for one in found) for kind, found in runs.items()}
    speedups = {workers: seconds[1, True] / seconds[workers, True] for workers in counts}
    sent = {workers: runs[workers, True][0].bytes_up for workers in counts}
    show(
        f"rounds of {samples:,} samples, {' - '.join(map(str, WIDTHS))}, one thread for each worker",
        ["workers", "exact, ms", "not exact, ms", "speedup of exact rounds", "MB of updates"],
        [
            [
                str(workers),
                *(f"{seconds[workers, exact] * 1e3:,.0f}" for exact in (True, False)),
                f"{speedups[workers]:.2f}",
                f"{sent[workers] / 1e6:,.1f}",
            ]
            for workers in counts
        ],
    )
    most, update_bytes = counts[-1], Layout.from_module(network()).bytes
    ratio = sent[most] / (samples * update_bytes)
    print(f"bytes of updates / one value per sample and weight: {ratio:.2e} (formula: {most / samples:.2e})")
    return {
        "speedup_over_one": min(speedup / workers for workers, speedup in speedups.items()),
        "exact_over_plain": max(seconds[workers, True] / seconds[workers, False] for workers in counts),
        "combined_bytes_ratio": ratio,
        "simulated_speedup_64": simulated_speedup(
            median(one.compute_seconds for one in runs[1, True]), is_saved=is_saved
        ),
    }


def hub_seconds() -> tuple[float, float]:
    """Return the hub's seconds of a round, and its further seconds for each update, with one thread."""
    updates, threads = (1, 9), torch.get_num_threads()
    torch.set_num_threads(1)
    few, many = map(_merge_seconds, updates)
    torch.set_num_threads(threads)
    each = max(0.0, (many - few) / (updates[1] - updates[0]))
    return max(0.0, few - each), each


def _merge_seconds(updates: int) -> float:
    """Return the median seconds to receive and merge this number of updates. The first time is not measured."""
    layout = Layout.from_module(network())
    weights, *blocks = [FlatBuffer.empty(layout) for _ in range(updates + 1)]
    for block in (weights, *blocks):
        block.memory.zero_()
    store, times = WeightStore(weights, SGD(0.1)), list[float]()
    for repeat in range(6):
        began = time.perf_counter()
        for number, block in enumerate(blocks):
            facts = Facts(f"w{number}:{repeat}", f"w{number}", store.version, CHUNK, kind="sum")
            store.receive(facts, Payload("sum", block))
        store.step(dict.fromkeys(store.inbox, 1 / (CHUNK * updates)), chunks=[1] * updates)
        times.append(time.perf_counter() - began)
    return median(times[1:])


def simulated_speedup(seconds_per_sample: float, *, is_saved: bool) -> float:
    """Print the speedups of full-batch rounds by simulation with measured times. Return that of 64 machines."""
    per_round, per_update = hub_seconds()
    shape = RunShape(samples=FULL_BATCH, batch=FULL_BATCH, model_bytes=Layout.from_module(network()).bytes)
    times = {}
    for mappers in MAPPERS:
        machines = [Machine(f"m{at}", seconds_per_sample, link=LINK) for at in range(mappers)]
        _, updates = _simulated_round(shape, machines, per_update)
        times[mappers], _ = _simulated_round(shape, machines, per_update + per_round / updates)
    speedups = {mappers: times[1] / seconds for mappers, seconds in times.items()}
    show(
        f"simulated rounds of {FULL_BATCH:,} samples ({seconds_per_sample * 1e3:.3f} ms a sample, "
        f"{per_update * 1e3:.1f} ms of the hub for an update, {LINK.megabits_per_second:,.0f} Mbit/s)",
        ["mappers", "seconds", "speedup"],
        [[str(n), f"{seconds:.2f}", f"{speedups[n]:.1f}"] for n, seconds in times.items()],
    )
    drawn = [
        Line("exact rounds", [*speedups.items()], 0),
        Line("linear", [(1, 1), (MAPPERS[-1], MAPPERS[-1])], 7, dashed=True),
    ]
    title = f"full-batch rounds of {FULL_BATCH:,} digits, by simulation with measured times"
    if is_saved:
        plots.save(Size.FULL, "digits_speedup", title, "mappers", "speedup", drawn)
    return speedups[MAPPERS[-1]]


def _simulated_round(shape: RunShape, machines: list[Machine], update_seconds: float) -> tuple[float, int]:
    """Return the seconds and the number of updates of the last of three rounds."""
    engine = Simulated(machines, hub=Hub(seconds_per_update=update_seconds), computes=False)
    run = fit(shape.job(), Synchronous(exact=True), engine, until="epochs>=3", quiet=True)
    steps = [
        (record.now, len(one.shares))
        for record in run.records
        for one in record.actions
        if isinstance(one, Step)
    ]
    return steps[-1][0] - steps[-2][0], steps[-1][1]
