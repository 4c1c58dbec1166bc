"""Events: what has happened to jobs and machines. `at` is the time in seconds.

Reports may arrive twice, or late: a report of an attempt that is not the job's current one is ignored.
"""

from dataclasses import dataclass

from oddlot.queue.core.jobs import JobRequest, Placement
from oddlot.queue.core.machines import Machine


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A user submitted a job, or a new scheduler takes it over after `attempt` starts and `served` saved seconds.

    `predicted`: seconds of the whole job.
    """

    at: float
    job: JobRequest
    predicted: float
    attempt: int = 0
    served: float = 0.0


@dataclass(frozen=True, slots=True)
class JobEstimated:
    """A job has a new prediction, in seconds of the whole job."""

    at: float
    job: str
    predicted: float


@dataclass(frozen=True, slots=True)
class JobStarted:
    """An attempt has started its command. A new scheduler takes over running attempts with their placement."""

    at: float
    job: str
    attempt: int
    placement: Placement = ()


@dataclass(frozen=True, slots=True)
class JobFinished:
    """An attempt ended well."""

    at: float
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobFailed:
    """An attempt failed, and the job with it."""

    at: float
    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class JobStopped:
    """An attempt ended before its job: it was preempted or lost. The job waits for its next start.

    `kept`: seconds of this attempt whose work was saved. Negative if the next start costs more time than was saved.
    """

    at: float
    job: str
    attempt: int
    kept: float = 0.0


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """A user cancelled a job."""

    at: float
    job: str


@dataclass(frozen=True, slots=True)
class MachineJoined:
    """A machine may be used. A machine with a known name replaces the one of that name, and keeps its jobs."""

    at: float
    machine: Machine


@dataclass(frozen=True, slots=True)
class MachineLost:
    """A machine and the attempts on it are gone."""

    at: float
    machine: str


@dataclass(frozen=True, slots=True)
class ClockTicked:
    """Time has passed. Policies whose priorities change with time decide again."""

    at: float


Event = (
    JobSubmitted
    | JobEstimated
    | JobStarted
    | JobFinished
    | JobFailed
    | JobStopped
    | JobCancelled
    | MachineJoined
    | MachineLost
    | ClockTicked
)
