"""What a policy is: an order of jobs, and whether it backfills or preempts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from oddlot.queue.core.jobs import Priority, QueuedJob


@dataclass(slots=True)
class Usage:
    """Service that the virtual clusters have received, and their shares of the machines."""

    unit_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds times units (GPUs, or cores of jobs without GPU) by virtual cluster."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Shares by virtual cluster. A cluster without one has the share 1."""


class Policy:
    """An order of jobs. Subclass it, and pass the class's import path ("module:Class") as the policy.

    The scheduler starts jobs in the order of their priority until one does not fit. With `backfills`, later jobs start
    if they do not delay that job by the predictions (EASY, Lifka 1995). With `preempts`, a job that does not fit stops
    running jobs with a larger priority.
    """

    name: ClassVar[str] = ""
    backfills: ClassVar[bool] = False
    preempts: ClassVar[bool] = False
    changes: ClassVar[bool] = False
    """Priorities of pending jobs change with time or with the usage. They are computed every few minutes, otherwise
    once. Priorities of running jobs are computed whenever a job may preempt them."""
    oracle: ClassVar[bool] = False
    """A replay gives it the true durations as predictions."""

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> Priority | None:
        """Return a job's place in the order, smaller first, or None to hold it back."""
        raise NotImplementedError
