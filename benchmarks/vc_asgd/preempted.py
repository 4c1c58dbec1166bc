"""Four local workers, killed and restarted as in a compressed trace, compared with four undisturbed workers."""

import os
import tempfile
from pathlib import Path
from statistics import mean

from benchmarks.report import Size, show
from benchmarks.vc_asgd.setting import SHARDS, a_job, proved
from oddlot import VCASGD, Local, Run, fit
from oddlot.faults import Chaos
from oddlot.machines import Alive, Steps
from oddlot.machines.market_traces import read_alive

WORKERS = 4
TRACE = "spot_bamboo_2020/aws-spot-instances-g4dn-xlarge-us-east-1c-2020-11-20-1930-to-2020-11-21-2200.csv"
PERIOD_SECONDS = 30.0
"""Seconds for twelve hours of the trace, from its first machine on. It repeats."""


def trace(period: float) -> tuple[Steps, int, str]:
    """Return the available machines over time, their maximum, and the name of the source."""
    path = Path(os.environ.get("ODDLOT_DATA", "")) / TRACE
    if path.is_file():
        hours = 12
        return read_alive(path).window(21_600, hours * 3600, hours * 3600 / period), 12, path.name
    return (
        Steps((0.0, 5.0, 9.0, 14.0, 20.0, 26.0), (4.0, 2.0, 3.0, 1.0, 4.0, 3.0), period),
        WORKERS,
        "a made-up trace (ODDLOT_DATA names no folder with the real one)",
    )


def run(epochs: int, seed: int, chaos: Chaos | None) -> Run:
    """Train on MNIST, and check the log."""
    job = a_job("mnist")
    strategy = VCASGD(newest=True)
    with tempfile.TemporaryDirectory() as folder:
        found = fit(
            job,
            strategy,
            Local(WORKERS, threads=1),
            until=f"epochs>={epochs}",
            shards=SHARDS,
            seed=seed,
            chaos=chaos,
            out=Path(folder) / "run",
        )
        return proved(found, job)


def measure(size: Size, seed: int) -> dict[str, float]:
    """Return the loss of accuracy through preemptions, in points, the mean over the seeds."""
    steps, of, message = trace(size.pick(2.0, PERIOD_SECONDS, PERIOD_SECONDS))
    epochs, seeds = size.pick((1, 1), (2, 1), (6, 3))
    found: dict[str, list[Run]] = {"undisturbed": [], "preempted": []}
    for luck in range(seed, seed + seeds):
        found["undisturbed"].append(run(epochs, luck, None))
        found["preempted"].append(run(epochs, luck, Chaos(seed=luck, capacity=Alive(steps, of=of))))
    rows = []
    for name, runs in found.items():
        summaries = [one.summary for one in runs]
        rows.append(
            [
                name,
                f"{mean(s['accuracy'] for s in summaries):.4f}",
                f"{mean(s['seconds'] for s in summaries):.1f}",
                f"{mean(s['workers_lost'] for s in summaries):.1f}",
                f"{mean(s['samples_wasted'] for s in summaries):,.0f}",
            ]
        )
    columns = ["4 local workers", "accuracy", "seconds", "workers lost", "samples wasted"]
    show(f"MNIST, {epochs} epochs, {seeds} seeds, preempted by {message}", columns, rows)
    right = {name: mean(one.accuracy or 0.0 for one in runs) for name, runs in found.items()}
    return {"real_accuracy_gap": 100 * (right["undisturbed"] - right["preempted"])}
