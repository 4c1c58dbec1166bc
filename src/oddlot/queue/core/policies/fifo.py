"""First come, first served."""

from typing import ClassVar

from oddlot.queue.core.jobs import QueuedJob
from oddlot.queue.core.policy import Policy, Usage


class Fifo(Policy):
    """First come, first served: a job that does not fit blocks all later ones."""

    name: ClassVar[str] = "fifo"

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> float:
        return job.request.submitted


class FifoBackfill(Fifo):
    """First come, first served, and later jobs start if they do not delay the first one (EASY)."""

    name: ClassVar[str] = "fifo_backfill"
    backfills: ClassVar[bool] = True
