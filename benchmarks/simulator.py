"""Speed of the simulator, in updates per second.

Fleets of 100, 1,000 and 10,000 machines with lognormal step times run `asynchronous` and `fastest_k`. The log is
written, and gradients are not computed. The baseline is a heap with the same number of pushes and pops.

python -m benchmarks.simulator [--quick|--smoke] [--save]
"""

import gc
import tempfile
import time
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Any

from torch.nn import Linear

from benchmarks.report import finish, median_and_range, parse, parser, show
from oddlot.core.conductor import Conductor
from oddlot.core.events import Arrived
from oddlot.core.optimizers import SGD
from oddlot.core.records import Record
from oddlot.core.sample_ledger import SampleLedger
from oddlot.engines.loop import drive
from oddlot.engines.simulated.compute import NullComputation
from oddlot.engines.simulated.engine import SimulatedHub
from oddlot.history.log import Log
from oddlot.history.metrics import Tally
from oddlot.machines.delay_models import Lognormal
from oddlot.machines.machine import Link, Machine
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.null_store import NullStore
from oddlot.run.training import host_of
from oddlot.strategies import Asynchronous, FastestK

FLEETS = (100, 1_000, 10_000)


def updates_per_second(machines: int, strategy: Any, updates: int, samples: int) -> float:
    """Return the updates per second of a run, after all machines have joined. Its log is written to a file."""
    computation = NullComputation(bytes_down=4_000_000, bytes_up=4_000_000)
    store = NullStore(FlatBuffer.empty(Layout.from_module(Linear(1, 1))), SGD(lr=0.1))
    link = Link(megabits_per_second=10_000, latency_milliseconds=0.2)
    fleet = [Machine(f"m{index}", delay=Lognormal(cv=0.5), link=link) for index in range(machines)]
    conductor = Conductor(strategy, SampleLedger(samples))
    engine = SimulatedHub(fleet, computation, conductor.batch, seed=1)
    tally = Tally(samples)
    arrived = 0

    def count(record: Record) -> None:
        nonlocal arrived
        arrived += isinstance(record.event, Arrived)

    with tempfile.TemporaryDirectory() as folder:
        log = Log(Path(folder) / "records.jsonl", conductor)
        host = host_of(conductor, store, engine, [tally, log, count])
        drive(host, engine, lambda: "joined" if arrived else "")
        began, before = time.perf_counter(), arrived
        drive(host, engine, lambda: "done" if arrived - before >= updates else "")
        seconds = time.perf_counter() - began
        log.close()
    return updates / seconds


def heap_per_second(machines: int, updates: int) -> float:
    """Return the updates per second of a bare heap with `machines` entries, with one pop and one push per update."""
    chance = Random(1)
    heap: list[tuple[float, int, str]] = []
    for number in range(machines):
        heappush(heap, (chance.random(), number, "happens"))
    began = time.perf_counter()
    for number in range(machines, machines + updates):
        now, _, happen = heappop(heap)
        heappush(heap, (now + chance.random(), number, happen))
    return updates / (time.perf_counter() - began)


def main() -> None:
    """Measure in turn, print the tables and the figures."""
    options = parse(parser("simulator", __doc__, "fewer updates and rounds, within 150 s"))
    size = options.size
    updates, rounds = size.pick((200, 1), (20_000, 3), (50_000, 5))
    samples = size.pick(10_000, 1_000_000, 1_000_000)
    fleets = [machines // size.pick(50, 1, 1) for machines in FLEETS]
    _, middle, large = fleets
    kinds: dict[str, Callable[[int], float]] = {
        "Asynchronous": lambda n: updates_per_second(n, Asynchronous(), updates, samples),
        "FastestK(n/2)": lambda n: updates_per_second(n, FastestK(k=n // 2), updates, samples),
        "bare heap": lambda n: heap_per_second(n, updates),
    }
    found: dict[tuple[str, int], list[float]] = {(kind, n): [] for kind in kinds for n in fleets}
    for _ in range(rounds):
        for (kind, n), values in found.items():
            gc.collect()
            values.append(kinds[kind](n))
    rows = [[kind, *(median_and_range(found[kind, n], 0) for n in fleets)] for kind in kinds]
    growth = [a / b for a, b in zip(found["Asynchronous", middle], found["Asynchronous", large], strict=True)]
    show("updates per second, median (range)", ["", *(f"{n:,} machines" for n in fleets)], rows)
    show(
        f"cost per update, {large:,} over {middle:,} machines",
        ["", "goal"],
        [[median_and_range(growth), "1.3"]],
    )
    finish(
        options,
        {
            "updates_per_second_1000": found["Asynchronous", middle],
            "cost_growth_10000": growth,
            "answers_per_second_fastest_k_1000": found["FastestK(n/2)", middle],
            "heap_per_second_1000": found["bare heap", middle],
        },
    )


if __name__ == "__main__":
    main()
