"""Commands of the scheduler and of parking."""

from dataclasses import dataclass

from oddlot.queue.core.jobs import Placement


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start an attempt of a job on these machines."""

    job: str
    attempt: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class PreemptJob:
    """Save an attempt's work and end it. JobStopped or JobFinished answers."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class CancelJob:
    """End an attempt of a cancelled job. JobStopped, JobFailed or JobFinished answers."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class ParkMachine:
    """Switch off an idle machine."""

    machine: str


@dataclass(frozen=True, slots=True)
class WakeMachine:
    """Switch on a machine."""

    machine: str


Command = StartJob | PreemptJob | CancelJob | ParkMachine | WakeMachine
