"""A trace, as its readers return it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from oddlot.queue.core.jobs import JobRequest


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job that has ended."""

    request: JobRequest
    duration: float
    """Seconds that it ran, over all of its attempts."""
    state: str = ""
    """"completed", "failed" or "cancelled", or empty if the trace has no states."""
    queued: float | None = None
    """Seconds that it waited on the cluster of the trace, if known."""


@dataclass(frozen=True, slots=True)
class TraceProblem:
    """A line that was left out."""

    line: int
    """Number of the line in the file. The first line is 1."""
    reason: str


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a trace, in the order of submission."""

    jobs: tuple[TraceJob, ...]
    problems: tuple[TraceProblem, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Number of machines by virtual cluster, if the trace has it."""
    gpus_per_node: int = 8
