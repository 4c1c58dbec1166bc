"""The workers that a run wants from a Ray cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fleet:
    """The names and needs of a run's workers: the part of `Ray` that the engine reads."""

    names: Sequence[str]
    """Names of the workers. Their number is the largest one."""
    min_workers: int
    """Number of workers with which the run starts."""
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] | None = None
    """Further resources of each worker."""
    runtime_env: Mapping[str, Any] | None = None
    lost_after_seconds: float = 10.0
    respawn: bool = True
    dollars_per_hour: float = 0.0

    @property
    def needs(self) -> dict[str, float]:
        """Resources that each worker needs."""
        return {"CPU": self.num_cpus, "GPU": self.num_gpus, **(self.resources or {})}
