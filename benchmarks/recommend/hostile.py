"""Accuracy with one hostile worker of five, and the time of a trimmed mean.

Each run trains `digits` with `Synchronous` on five simulated machines, without `max_update_ratio`. In an attack, each
gradient of the last machine arrives with its sign flipped, or 100 times larger. All runs evaluate a moving average of
the weights, because one test image is 0.28 points. Other runs, without a moving average, have figures that end in
`_last_weights`. The drop is the accuracy of the mean without an attack minus the accuracy of the attacked run with the
same seed, in percentage points. The worse attack of each seed counts.

The trimmed mean of 8 updates with 25 million float32 values is compared with a plain copy (`Tensor.copy_`) of 25
million values, with one thread. The mean must read 8 values per result and write one: 36 bytes. The copy reads and
writes 8 bytes. At the bandwidth of the copy, the ratio is therefore at least 4.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch
from rich.console import Console

import oddlot
from benchmarks.recommend.two_processes import spread
from benchmarks.report import Measured, Size, median_and_range
from oddlot.merging import Arrival, Combine, Gate, Krum, TrimmedMean
from oddlot.model.trimmed_means import trimmed_mean
from oddlot.workloads.digits import digits

MACHINES = 5
EMA_DECAY = 0.98
ATTACKS = {"sign flipped": -1.0, "100 times larger": 100.0}
RULES: Mapping[str, Combine | None] = {"mean": None, "trimmed": TrimmedMean(0.2), "krum": Krum(faulty=1)}
UPDATES, NUMBERS, TRIM = 8, 25_000_000, 2
FLOOR = (UPDATES + 1) / 2
"""Bytes that a trimmed mean must read and write / bytes of a copy."""


@dataclass
class Attack(Gate):
    """Multiplies each gradient of a machine by a factor when it arrives, as if its worker had sent it so."""

    factor: float
    machine: str

    def check(self, arrival: Arrival) -> None:
        """Change the update in place. No update is rejected."""
        if arrival.facts.sender.partition(".")[0] == self.machine:
            for index in arrival.flat.layout.of_role("trainable"):
                arrival.flat.section(index).mul_(self.factor)


def accuracy(rule: str, factor: float, seed: int, epochs: int, ema_decay: float | None) -> float:
    """Return the final accuracy of a run with a rule of `RULES` and the attack `factor` (1: no attack)."""
    machines = [oddlot.Machine(f"m{number}", 0.01) for number in range(MACHINES)]
    run = oddlot.fit(
        replace(digits(), ema_decay=ema_decay),
        oddlot.Synchronous(),
        oddlot.Simulated(machines),
        until=f"epochs>={epochs}",
        seed=seed,
        combine=RULES[rule],
        gates=[Attack(factor, machines[-1].name)] if factor != 1 else (),
        max_update_ratio=None,
        skip_bad=True,
        evaluate_every=f"{epochs} epochs",
        quiet=True,
    )
    return float(run.summary["accuracy"])


def drops(size: Size, ema_decay: float | None) -> dict[str, list[float]]:
    """Return the drop of each seed, in percentage points, for each rule and its worse attack."""
    seeds, epochs = range(size.pick(1, 3, 3)), size.pick(1, 30, 30)
    attacks = [("mean", 1.0), *((name, factor) for name in RULES for factor in ATTACKS.values())]
    runs = [(name, factor, seed, epochs, ema_decay) for seed in seeds for name, factor in attacks]
    reached = dict(zip(runs, spread(accuracy, runs), strict=True))
    found: dict[str, list[float]] = {name: [] for name in RULES}
    for seed in seeds:
        clean = reached["mean", 1.0, seed, epochs, ema_decay]
        for name, values in found.items():
            attacked = min(reached[name, factor, seed, epochs, ema_decay] for factor in ATTACKS.values())
            values.append(100 * (clean - attacked))
    return found


def seconds_over_copy(size: Size) -> list[float]:
    """Return the time of each trimmed mean / the mean time of the copies before and after it."""
    numbers, rounds = NUMBERS // size.pick(100, 1, 1), size.pick(2, 7, 15)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        updates = [torch.randn(numbers) for _ in range(UPDATES)]
        out, target = torch.zeros(numbers), torch.zeros(numbers)
        ratios = []
        for _ in range(rounds + 1):  # the first compiles the kernel, and is not counted
            times = [perf_counter()]
            target.copy_(updates[0])
            times.append(perf_counter())
            trimmed_mean(updates, TRIM, out)
            times.append(perf_counter())
            target.copy_(updates[1])
            times.append(perf_counter())
            before, combined, after = (end - start for start, end in pairwise(times))
            ratios.append(2 * combined / (before + after))
        return ratios[1:]
    finally:
        torch.set_num_threads(threads)


def measure(size: Size) -> dict[str, Measured]:
    """Measure the drops and the time of a trimmed mean, print them, and return the figures."""
    console, figures = Console(), dict[str, Measured]()
    for weights, ema_decay in (("", EMA_DECAY), ("_last_weights", None)):
        for name, values in drops(size, ema_decay).items():
            lost = f"{median_and_range(values)} points of accuracy lost with one hostile worker of five"
            console.print(f"{name}{weights}: {lost}")
            figures[f"{name}_accuracy_drop_points{weights}"] = values
    over_copy = seconds_over_copy(size)
    over_floor = f"{median(over_copy) / FLOOR:.1f} times the floor of {FLOOR}"
    console.print(f"trimmed mean / copy: {median_and_range(over_copy)}, {over_floor}")
    return figures | {"combine_over_copy": over_copy}
