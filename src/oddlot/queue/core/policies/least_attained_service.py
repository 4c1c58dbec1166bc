"""Least attained service (Tiresias, Gu et al., NSDI 2019, section 3.2)."""

from bisect import bisect_right
from typing import ClassVar

from oddlot.queue.core.jobs import QueuedJob
from oddlot.queue.core.policy import Policy, Usage

LEVELS = (3_600.0, 36_000.0)
"""GPU-seconds at which a job moves to the next level. Within a level, jobs run in the order of submission."""


class LeastAttainedService(Policy):
    """Jobs with the least GPU time so far first, in three levels, with preemption. It needs no prediction."""

    name: ClassVar[str] = "las"
    preempts: ClassVar[bool] = True

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> tuple[float, ...]:
        level = bisect_right(LEVELS, job.attained(now) * max(1, job.request.units))
        return float(level), job.request.submitted
