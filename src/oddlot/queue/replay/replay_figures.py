"""Figures of a replay."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from oddlot.queue.core.machines import Machine
from oddlot.queue.replay.replay import Replay
from oddlot.queue.replay.simulation import ReplayedJob

SHORTEST_SECONDS = 10.0
"""Slowdowns of shorter jobs count as if they had run for this time (bounded slowdown, Feitelson 1998)."""
CURVE_POINTS = 300


@dataclass(frozen=True)
class ReplayFigures:
    """Figures of one policy. Times in seconds."""

    policy: str
    virtual_cluster: str
    """Name of the cluster, or empty for all."""
    jobs: int
    gpus: int
    """GPUs of the machines."""
    mean_completion: float
    """Mean time from submission to end."""
    median_completion: float
    p95_completion: float
    mean_queued: float
    """Mean time from submission to end without the job's own duration."""
    median_queued: float
    p95_queued: float
    mean_slowdown: float
    """Mean of completion time / duration, with durations of at least 10 s."""
    utilization: float
    """Share of the GPUs in use from the first submission to the last."""
    preemptions: int
    by_cluster: tuple["ReplayFigures", ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """Return the figures as values of JSON."""
        return asdict(self)


def figures_of(replay: Replay) -> ReplayFigures:
    """Return the figures of all jobs, and of the jobs of each virtual cluster with its own machines."""
    groups: dict[str, list[ReplayedJob]] = defaultdict(list)
    for job in replay.jobs:
        groups[job.job.request.virtual_cluster].append(job)
    machines = [machine for pool in replay.machines.values() for machine in pool]
    by_cluster: list[ReplayFigures] = []
    if len(groups) > 1:
        for name, jobs in sorted(groups.items()):
            by_cluster.append(_figures(replay.policy, name, jobs, replay.machines.get(name, machines)))
    return _figures(replay.policy, "", replay.jobs, machines, by_cluster)


def load_curve(replay: Replay) -> list[tuple[float, float]]:
    """Return the mean number of GPUs in use, by seconds since the first submission."""
    begin = min(job.job.request.submitted for job in replay.jobs)
    end = max(job.ended for job in replay.jobs)
    times = np.linspace(begin, end, CURVE_POINTS + 1)
    used = _used_seconds(replay.jobs, times)
    means = np.diff(used) / np.maximum(1e-9, np.diff(times))
    return [(float(at - begin), float(mean)) for at, mean in zip(times[1:], means, strict=True)]


def distribution(values: Iterable[float], points: int = 200) -> list[tuple[float, float]]:
    """Return the cumulative distribution of values as points (value, share of the values up to it)."""
    ordered = np.sort(np.fromiter(values, float))
    shares = np.linspace(0, 1, points + 1)[1:]
    return [
        (float(value), float(share))
        for value, share in zip(np.quantile(ordered, shares), shares, strict=True)
    ]


def _figures(
    policy: str,
    cluster: str,
    jobs: Sequence[ReplayedJob],
    machines: Sequence[Machine],
    by_cluster: Iterable[ReplayFigures] = (),
) -> ReplayFigures:
    completion = np.array([job.completion for job in jobs])
    queued = np.array([job.waited for job in jobs])
    duration = np.array([job.job.duration for job in jobs])
    gpus = sum(machine.gpus for machine in machines)
    submitted = [job.job.request.submitted for job in jobs]
    window = np.array([min(submitted), max(submitted)])
    used = np.diff(_used_seconds(jobs, window))[0]
    slowdown = (queued + duration) / np.maximum(duration, SHORTEST_SECONDS)
    return ReplayFigures(
        policy=policy,
        virtual_cluster=cluster,
        jobs=len(jobs),
        gpus=gpus,
        mean_completion=float(completion.mean()),
        median_completion=float(np.median(completion)),
        p95_completion=float(np.quantile(completion, 0.95)),
        mean_queued=float(queued.mean()),
        median_queued=float(np.median(queued)),
        p95_queued=float(np.quantile(queued, 0.95)),
        mean_slowdown=float(np.maximum(slowdown, 1.0).mean()),
        utilization=float(used / max(1e-9, gpus * (window[1] - window[0]))),
        preemptions=sum(job.attempts - 1 for job in jobs),
        by_cluster=tuple(by_cluster),
    )


def _used_seconds(jobs: Sequence[ReplayedJob], times: np.ndarray) -> np.ndarray:
    """Return the GPU-seconds used before each time. `times`: shape (n,), ascending."""
    gpus = np.array([job.job.request.gpus for job in jobs for _ in job.intervals], float)
    attempts = np.array([interval for job in jobs for interval in job.intervals])
    starts, ends = attempts[:, 0], attempts[:, 1]
    return np.array([float(gpus @ np.clip(at - starts, 0.0, ends - starts)) for at in times])
