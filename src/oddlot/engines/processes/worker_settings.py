"""Common settings of the engines with worker processes."""

from dataclasses import dataclass
from typing import ClassVar

from oddlot.core.support.validation import AtLeastOne, NotNegative, check_settings
from oddlot.engines.base import FaultKind

MAX_WORKERS = 10_000
"""Largest number of workers. Each is a process that imports PyTorch."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Base class of the settings of an engine with worker processes."""

    workers: int | tuple[int, int] = 2
    """Number of workers, or (minimum, maximum)."""
    in_flight: AtLeastOne = 1
    """Open tasks of each worker. 2 hides the latency of messages to the hub, at a staleness of 1. A synchronous
    step then merges two tasks per worker."""
    respawn: bool = True
    """Whether lost workers are replaced."""
    dollars_per_hour: NotNegative = 0.0
    """Price of a worker, in dollars per hour."""

    kind: ClassVar[str]
    workers_setting: ClassVar[str] = "workers"
    is_virtual: ClassVar[bool] = False
    computes: ClassVar[bool] = True
    faults: ClassVar[frozenset[FaultKind]] = frozenset({"kill", "leave", "slow", "freeze", "preempt"})

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def max_workers(self) -> int:
        """Largest number of workers at the same time."""
        return self.workers if isinstance(self.workers, int) else self.workers[1]

    @property
    def names(self) -> list[str]:
        """Names of the workers: w1, w2, ..."""
        return [f"w{number + 1}" for number in range(self.max_workers)]
