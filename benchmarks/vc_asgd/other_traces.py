"""Time on spot at other beginnings and on other traces than the bill's: four of Bamboo, and Google's probes.

VC-ASGD makes the number of epochs that it needs on machines that stay, with nothing computed. The traces repeat. The
number of machines to request is the bill's: it makes 8 on average. It is also measured with 8 requested machines.
"""

from collections.abc import Iterator
from statistics import median

import torch
from torch import nn

from benchmarks.report import Measured, Size, show, told
from benchmarks.vc_asgd.market import ALIVE, MACHINES, Recorded, bamboo, gcp
from benchmarks.vc_asgd.setting import SHARDS, zone
from oddlot import VCASGD, Job, Simulated, fit
from oddlot.machines.capacity import Capacity

BEGINNINGS = 40
"""Moments of a trace at which the job begins, evenly over it."""
WITHIN = 1.5


def seconds(capacity: Capacity, count: int, epochs: float, seed: int, deadline: float) -> float:
    """Return the time of a run with nothing computed, with the smallest shards that give no warning."""
    samples = 5 * SHARDS
    data = torch.zeros(samples, 1), torch.zeros(samples, dtype=torch.long)
    job = Job(lambda: nn.Linear(1, 2), data, nn.functional.cross_entropy, batch_size=1)
    on = Simulated([zone(job, count, capacity)], seed=seed + 1, computes=False)
    strategy = VCASGD(newest=True, deadline_seconds=deadline)
    run = fit(job, strategy, on, until=f"epochs>={epochs}", shards=SHARDS, seed=seed, quiet=True)
    return float(run.summary["seconds"])


def recorded() -> Iterator[tuple[str, Recorded]]:
    """Yield all traces with their names."""
    yield from ((f"Bamboo {name}", bamboo(name)) for name in ALIVE)
    yield from ((f"GCP {name}", one) for name, one in gcp())


def measure(size: Size, seed: int, epochs: float, most: float, deadline: float) -> dict[str, Measured]:
    """Return times over `most` seconds: all beginnings on all traces."""
    beginnings = size.pick(2, BEGINNINGS, BEGINNINGS)
    rows, ratios, eight = [], list[float](), list[float]()
    for name, trace in recorded():
        here = dict[int, list[float]]()
        for count in sorted({MACHINES, many := trace.requested(MACHINES)}):
            here[count] = [
                seconds(trace.repeated(trace.seconds * n / beginnings), count, epochs, seed + n, deadline)
                / most
                for n in range(beginnings)
            ]
        ratios += here[many]
        eight += here[MACHINES]
        cells = [
            f"{trace.availability:.3f}",
            f"{trace.longest_gap / 3600:.1f}",
            f"{many}",
            told(here[many], 2),
        ]
        rows.append([name, *cells, f"{within(here[many]):.2f}", told(here[MACHINES], 2)])
    columns = ["trace", "available", "longest gap, hours", "requested", "time over on demand"]
    title = f"{epochs} epochs, {beginnings} beginnings, over {most / 3600:.2f} hours on demand"
    show(title, [*columns, f"within {WITHIN}", "time, 8 requested"], rows)
    print(f"all: {told(ratios)}, within {WITHIN}: {within(ratios):.3f}; 8 requested: {median(eight):.3f}")
    return {
        "time_over_on_demand_other_traces": ratios,
        "time_over_on_demand_other_traces_within_1_5": within(ratios),
        "time_over_on_demand_other_traces_8_requested": eight,
    }


def within(ratios: list[float]) -> float:
    """Return the share of at most `WITHIN`."""
    return sum(one <= WITHIN for one in ratios) / len(ratios)
