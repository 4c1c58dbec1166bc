"""The settings of the Ray engine. This module does not import Ray."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import AboveZero, Must, NotNegative
from oddlot.engines.processes.worker_settings import MAX_WORKERS, WorkerSettings
from oddlot.machines.buying import Buying

SPOT, ON_DEMAND = "spot", "on_demand"
"""Names of the resources of spot nodes and on-demand nodes, for a buying policy."""


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
    buying: Buying | None = None
    """Policy that adds on-demand workers to meet a deadline. Spot nodes then need the resource `spot`, and on-demand
    nodes `on_demand`, one unit for each worker. None: workers run on any node."""
    on_demand_dollars_per_hour: NotNegative = 0.0
    """Price of an on-demand worker of the buying policy, in dollars per hour."""
    seconds_to_start: NotNegative = 300.0
    """Expected seconds from the request of an on-demand worker until it is ready. Later starts are measured."""
    seconds_per_sample: AboveZero | None = None
    """Expected seconds of a worker for a sample. The buying policy uses it until the speed is measured. None: the work
    is assumed to take half of the time to the deadline."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buying is not None and not self.respawn:
            message = "the buying policy replaces workers, but respawn is False: set it to True, or leave out buying"
            raise UsageError(message, "buying_without_respawn", "buying")

    @property
    def min_workers(self) -> int:
        """Minimum number of workers to start the run."""
        return 1 if isinstance(self.workers, int) else self.workers[0]

    @property
    def needs(self) -> dict[str, float]:
        """Resources that each worker needs. With a buying policy, these are the workers on spot nodes."""
        return self._needs(SPOT, ON_DEMAND)

    @property
    def on_demand_needs(self) -> dict[str, float]:
        """Resources that each on-demand worker of the buying policy needs."""
        return self._needs(ON_DEMAND, SPOT)

    def _needs(self, of_kind: str, of_other: str) -> dict[str, float]:
        needs = {"CPU": self.num_cpus, "GPU": self.num_gpus, **(self.resources or {})}
        if self.buying is not None:
            needs.setdefault(of_kind, 1.0)
            needs.pop(of_other, None)
        return needs

    @property
    def on_demand_names(self) -> list[str]:
        """Names of the on-demand workers of the buying policy. Their indices follow those of `names`."""
        return [] if self.buying is None else [f"on-demand{number + 1}" for number in range(self.max_workers)]

    def is_on_demand(self, index: int) -> bool:
        """Return whether the worker `index` is an on-demand worker of the buying policy."""
        return index >= self.max_workers
