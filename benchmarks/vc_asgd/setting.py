"""Shared code of all parts: the paper's setting, jobs, clients."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import Any

from oddlot import Job, Machine, Run
from oddlot.history.audit import prove
from oddlot.machines import Lognormal, Offer, Steps, Zone
from oddlot.machines.capacity import Capacity
from oddlot.workloads import load_workload

SHARDS = 50
T_E = 144.0
"""Seconds of a pass over a shard on a client of speed 1."""
SECONDS_TO_START, NOTICED_AFTER = 60.0, 300.0
proofs: list[bool] = []
"""For every run with real gradients, whether its log proves that each sample counted exactly once."""


def a_job(dataset: str, samples: int | None = None) -> Job:
    """Return a job on a dataset, or on its first `samples` samples."""
    options: dict[str, Any] = {"augment": False} if dataset == "cifar10" else {}
    job = load_workload(dataset, options)
    return (
        job if samples is None else replace(job, train_data=tuple(part[:samples] for part in job.train_data))
    )


def shard_seconds(job: Job) -> float:
    """Return the seconds per sample for a shard to take t_e."""
    return T_E * SHARDS / len(job.train_data[0])


def like(job: Job, **changes: Any) -> Machine:
    """Return a client of speed 1, with a coefficient of variation of its times of 0.2."""
    return Machine("client", seconds_per_sample=shard_seconds(job), delay=Lognormal(0.2), **changes)


def zone(job: Job, count: int, capacity: Capacity) -> Zone:
    """Return a zone with changing capacity for machines of speed 1, at one dollar per hour."""
    offer = Offer("any", 1.0, Steps((0.0,), (1.0,)), seconds_to_start=SECONDS_TO_START)
    return Zone("m", offer, count, like(job, noticed_after_seconds=NOTICED_AFTER), capacity)


def clients(job: Job, count: int) -> list[Machine]:
    """Return slots with speeds from 0.8 to 1.2."""
    one = like(job)
    speeds = [0.8 + 0.4 * slot / max(1, count - 1) for slot in range(count)]
    return [
        replace(one, name=f"slot{slot}", seconds_per_sample=one.seconds_per_sample / speed)
        for slot, speed in enumerate(speeds)
    ]


def proved(run: Run, job: Job) -> Run:
    """Check the log of a run, append the result to `proofs`, and return the run."""
    proofs.append(not prove(run.records, len(job.train_data[0])).faults)
    return run


def accuracy_at(run: Run, epochs: float) -> float:
    """Return the accuracy of the newest version that was evaluated within `epochs`."""
    rows = [row for row in run.history if row["epochs"] <= epochs + 1e-9]
    return max(rows, key=lambda row: row["versions"])["accuracy"]


def reached(run: Run, accuracy: float, figure: str = "seconds") -> float | None:
    """Return the seconds (or another figure) at the first version with this accuracy, or None."""
    rows = sorted(run.history, key=lambda row: row["versions"])
    return next((row[figure] for row in rows if row["accuracy"] >= accuracy), None)


def once_above(line: Sequence[tuple[float, float]], least: float) -> Sequence[tuple[float, float]]:
    """Return the points of a line from its first point at or above `least`."""
    return list(dropwhile(lambda point: point[1] < least, line))


def points(run: Run, across: str, scale: float = 1.0) -> Sequence[tuple[float, float]]:
    """Return the accuracy by a figure of the history."""
    rows = sorted(run.history, key=lambda row: row["versions"])
    return [(row[across] * scale, row["accuracy"]) for row in rows]
