"""Quasi-shortest service first (Helios, section 4.2)."""

from typing import ClassVar

from oddlot.queue.core.jobs import QueuedJob
from oddlot.queue.core.policy import Policy, Usage


class ShortestService(Policy):
    """Quasi-shortest service first: the order of predicted GPU time, which is duration times GPUs."""

    name: ClassVar[str] = "qssf"

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> float:
        return job.predicted * max(1, job.request.units)


class ShortestServiceBackfill(ShortestService):
    """Quasi-shortest service first, and later jobs start if they do not delay the first one (EASY)."""

    name: ClassVar[str] = "qssf_backfill"
    backfills: ClassVar[bool] = True
