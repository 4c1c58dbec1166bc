"""What a policy is: an order of jobs, and whether it backfills or preempts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from numbers import Real
from typing import Any, ClassVar

from oddlot.core.support.errors import UsageError
from oddlot.core.support.user_code import trace_of
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


class PolicyFailed(UsageError):
    """A policy raised an exception for a job, or returned no priority."""

    code = "policy_failed"


def priority_of(policy: Policy, job: QueuedJob, now: float, usage: Usage) -> tuple[float, ...] | None:
    """Return the priority that a policy gives to a job, as a tuple.

    Raise PolicyFailed if the policy raises, or returns anything but a number, a tuple of numbers or None.
    """
    name, given = policy.name or type(policy).__name__, job.request.id
    try:
        priority = policy.priority(job, now, usage)
    except Exception as error:
        reason = trace_of(error)
        message = f"the policy {name} failed for job {given}:\n{reason}"
        raise PolicyFailed(message, policy=name, job=given, reason=reason) from error
    if priority is None:
        return None
    numbers: tuple[Any, ...] = priority if isinstance(priority, tuple) else (priority,)
    if all(isinstance(number, Real) and not isnan(number) for number in numbers):
        return numbers
    message = f"the policy {name} gave job {given} the priority {priority!r}: return a number, a tuple of them, or None"
    raise PolicyFailed(message, policy=name, job=given, priority=repr(priority))
