"""Fair share of virtual clusters."""

from typing import ClassVar

from oddlot.queue.core.jobs import QueuedJob
from oddlot.queue.core.policy import Policy, Usage


class FairShare(Policy):
    """Jobs of the virtual cluster with the least GPU time for its share first, then in the order of submission.

    Later jobs start if they do not delay the first one (EASY).
    """

    name: ClassVar[str] = "fair_share"
    backfills: ClassVar[bool] = True
    changes: ClassVar[bool] = True

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> tuple[float, ...]:
        cluster = job.request.virtual_cluster
        used = usage.unit_seconds.get(cluster, 0.0) / usage.shares.get(cluster, 1.0)
        return used, job.request.submitted
