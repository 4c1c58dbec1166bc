"""Expected starts and ends of the open jobs, with their ranges."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from oddlot.queue.core.events import JobStopped
from oddlot.queue.core.expected_ends import SHORTEST_SECONDS
from oddlot.queue.core.expected_times import expected_times
from oddlot.queue.core.jobs import JobState, QueuedJob
from oddlot.queue.core.scheduler import Scheduler

Range = tuple[float, float, float]
"""Earliest, middle and latest time, in seconds since 1970."""


class Predicted(Protocol):
    """A job with a predicted duration, in seconds, and its 10 % and 90 % quantiles."""

    @property
    def id(self) -> int:
        """Number of the job."""

    @property
    def predicted(self) -> float:
        """Predicted seconds."""

    @property
    def low(self) -> float:
        """10 % quantile."""

    @property
    def high(self) -> float:
        """90 % quantile."""


@dataclass(frozen=True)
class ExpectedRange:
    """When a job is expected to start and to end."""

    start: Range
    end: Range


def expected_ranges(
    scheduler: Scheduler, jobs: Iterable[Predicted], now: float, grace: float = 0.0
) -> dict[int, ExpectedRange]:
    """Return the expected times of the jobs that can run, by id. The scheduler is changed: stopping jobs have stopped.

    The scheduler is simulated three times. All jobs take as long as predicted, or as the 10 % or 90 % quantiles of
    their durations, which are wider than the errors of many jobs together. A cancelled job ends within `grace` seconds.
    """
    found = _stop(scheduler, now, grace)
    durations = [_durations(job, scheduler.jobs.get(str(job.id)), now) for job in jobs]
    low, middle, high = (
        expected_times(scheduler, {name: seconds[index] for name, seconds in durations}, now)
        for index in range(3)
    )
    return found | {
        int(name): ExpectedRange(
            _ordered(low[name].start, times.start, high[name].start),
            _ordered(low[name].end, times.end, high[name].end),
        )
        for name, times in middle.items()
        if name in low and name in high
    }


def _stop(scheduler: Scheduler, now: float, grace: float) -> dict[int, ExpectedRange]:
    """Stop the jobs that have been told to stop. Return the expected times of those that will not start again."""
    found = {}
    for name, job in list(scheduler.jobs.items()):
        if job.state is JobState.STOPPING:
            started = job.started
            scheduler.note(JobStopped(now, name, job.attempt, job.running(now)))
            if name not in scheduler.jobs:
                found[int(name)] = ExpectedRange((started, started, started), (now, now, now + grace))
    return found


def _durations(job: Predicted, queued: QueuedJob | None, now: float) -> tuple[str, Range]:
    """Return the id of a job, and its shortest, middle and longest duration in seconds.

    A job that runs longer than predicted takes twice as long, or four times, and so on, with the same relative range.
    """
    name, range_ = str(job.id), (job.low, job.predicted, job.high)
    if queued is None or queued.state is JobState.PENDING:
        return name, range_
    served, ran = queued.served, queued.running(now)
    low, middle, high = (max(SHORTEST_SECONDS, seconds - served) for seconds in range_)
    scale = 1.0
    while middle * scale < ran:
        scale *= 2
    return name, (
        served + max(low * scale, ran + SHORTEST_SECONDS),
        served + middle * scale,
        served + high * scale,
    )


def _ordered(low: float, middle: float, high: float) -> Range:
    """Return a range around the middle. Shorter durations may change the order, and delay a job."""
    return min(low, middle, high), middle, max(low, middle, high)
