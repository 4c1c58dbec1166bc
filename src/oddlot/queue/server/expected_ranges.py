"""Expected starts and ends of the open jobs, with their ranges."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from oddlot.queue.core.expected_times import expected_times
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


def expected_ranges(scheduler: Scheduler, jobs: Iterable[Predicted], now: float) -> dict[int, ExpectedRange]:
    """Return the expected times of the jobs that can run, by id.

    The scheduler is simulated three times. All jobs take as long as predicted, or as the 10 % or 90 % quantiles of
    their durations, which are wider than the errors of many jobs together.
    """
    jobs = list(jobs)
    low, middle, high = (
        expected_times(scheduler, durations, now)
        for durations in (
            {str(job.id): job.low for job in jobs},
            {str(job.id): job.predicted for job in jobs},
            {str(job.id): job.high for job in jobs},
        )
    )
    return {
        int(name): ExpectedRange(
            _ordered(low[name].start, times.start, high[name].start),
            _ordered(low[name].end, times.end, high[name].end),
        )
        for name, times in middle.items()
        if name in low and name in high
    }


def _ordered(low: float, middle: float, high: float) -> Range:
    """Return a range around the middle. Shorter durations may change the order, and delay a job."""
    return min(low, middle, high), middle, max(low, middle, high)
