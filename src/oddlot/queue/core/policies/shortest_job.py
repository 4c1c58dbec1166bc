"""Orders by duration. In a replay they know the true durations."""

from typing import ClassVar

from oddlot.queue.core.jobs import QueuedJob
from oddlot.queue.core.policy import Policy, Usage


class ShortestJob(Policy):
    """Shortest job first."""

    name: ClassVar[str] = "sjf"
    oracle: ClassVar[bool] = True

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> float:
        return job.predicted


class ShortestRemainingTime(Policy):
    """Shortest remaining time first, with preemption."""

    name: ClassVar[str] = "srtf"
    oracle: ClassVar[bool] = True
    preempts: ClassVar[bool] = True

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> float:
        return job.remaining(now)
