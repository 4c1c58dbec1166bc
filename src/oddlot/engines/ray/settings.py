"""The settings of the Ray engine. This module does not import Ray."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from oddlot.core.support.validation import AboveZero, Must, NotNegative
from oddlot.engines.processes.worker_settings import MAX_WORKERS, WorkerSettings


def _is_range(value: object) -> bool:
    pair = value if isinstance(value, tuple | list) else (1, value)
    if len(pair) != 2 or not all(type(number) is int for number in pair):
        return False
    return bool(1 <= pair[0] <= pair[1] <= MAX_WORKERS)


Workers = Annotated[
    int | tuple[int, int],
    Must(
        f"a number from 1 to {MAX_WORKERS:,}, or a range: (minimum, maximum), MINIMUM-MAXIMUM as a flag",
        _is_range,
    ),
]


@dataclass(frozen=True)
class RaySettings(WorkerSettings):
    """Base class of `Ray`: its settings, without Ray."""

    workers: Workers = 2
    """Number of workers, or (minimum, maximum): the run starts with the minimum, and uses more as they come. A number
    alone is the maximum, with a minimum of 1."""
    num_cpus: NotNegative = 1.0
    """CPUs that each worker needs, and its number of threads."""
    num_gpus: NotNegative = 0.0
    """GPUs that each worker needs."""
    resources: Mapping[str, float] | None = None
    """Further resources that each worker needs, as in Ray, such as {"spot": 1}."""
    runtime_env: Mapping[str, Any] | None = None
    """Ray's runtime environment, such as {"working_dir": "."}."""
    address: str | None = None
    """Address of the cluster, such as "10.0.0.5:6379" or "auto". Default: $RAY_ADDRESS."""
    lost_after_seconds: AboveZero = 10.0
    """Seconds without a sign of life after which a worker counts as lost. Its tasks go to other workers. Code that
    holds Python's GIL prevents signs of life."""

    @property
    def min_workers(self) -> int:
        """Minimum number of workers to start the run."""
        return 1 if isinstance(self.workers, int) else self.workers[0]

    @property
    def needs(self) -> dict[str, float]:
        """Resources that each worker needs."""
        return {"CPU": self.num_cpus, "GPU": self.num_gpus, **(self.resources or {})}
