"""Jobs, as the scheduler sees them."""

from dataclasses import dataclass, field
from enum import StrEnum

Priority = float | tuple[float, ...]
"""Place of a job in the queue. Smaller starts first."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a user asks for. Times in seconds.

    `gpus` counts GPUs over all machines. `cpus` counts cores over all machines. `virtual_cluster` is a group of users.
    """

    id: str
    submitted: float
    gpus: int = 0
    cpus: int = 0
    user: str = ""
    name: str = ""
    virtual_cluster: str = ""
    preemptible: bool = True
    """Whether it may be preempted, because its next start continues its work."""

    @property
    def units(self) -> int:
        """Number of GPUs, or of cores if the job uses no GPU."""
        return self.gpus or self.cpus

    @property
    def shape(self) -> tuple[int, int]:
        """GPUs and cores."""
        return self.gpus, self.cpus


@dataclass(frozen=True, slots=True)
class Part:
    """GPUs and cores of one machine that a job uses."""

    machine: str
    gpus: int
    cpus: int


Placement = tuple[Part, ...]


class JobState(StrEnum):
    """State of a job that has not ended."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    """It has been told to stop, and still uses its machines."""


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A job that has not ended."""

    request: JobRequest
    predicted: float
    """Predicted duration of the whole job, in seconds."""
    number: int
    """Position in the order of submission."""
    state: JobState = JobState.PENDING
    attempt: int = 0
    """Number of its last start. 0: never started."""
    started: float = 0.0
    """Time of its last start."""
    served: float = 0.0
    """Seconds of earlier attempts that count, because their work was saved."""
    used: float = 0.0
    """Seconds of earlier attempts, with lost work."""
    placement: Placement = ()
    key: tuple[object, ...] = field(default=(), repr=False)
    """Its place in the queue's order."""

    def running(self, now: float) -> float:
        """Return the seconds since its last start, or 0 if it does not run."""
        return 0.0 if self.state is JobState.PENDING else now - self.started

    def attained(self, now: float) -> float:
        """Return the seconds that it has used its machines."""
        return self.used + self.running(now)

    def remaining(self, now: float) -> float:
        """Return the predicted seconds until its end, once it runs. At least 0."""
        return max(0.0, self.predicted - self.served - self.running(now))
