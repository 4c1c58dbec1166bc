"""`engine=Ray(...)`: workers on the machines of a Ray cluster."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from oddlot.core.tasks import NodeId
from oddlot.core.validation import AboveZero, AtLeastOne, Must, NotNegative, check_settings
from oddlot.engines.base import FaultKind, Open, Opened, RunData
from oddlot.engines.ray.fleet import Fleet

if TYPE_CHECKING:
    from oddlot.engines.ray.placement import StartedActors
    from oddlot.engines.ray.ray_messages import RayMessages

MAX_WORKERS = 10_000
"""Largest number of workers."""


def _is_range(value: object) -> bool:
    pair = value if isinstance(value, tuple | list) else (1, value)
    if len(pair) != 2 or not all(type(number) is int for number in pair):
        return False
    return bool(1 <= pair[0] <= pair[1] <= MAX_WORKERS)


Workers = Annotated[
    int | tuple[int, int],
    Must("a number, or two numbers (minimum, maximum), from 1 to 10,000", _is_range),
]


@dataclass(frozen=True)
class Ray:
    """Workers on the machines of a Ray cluster, one actor each. Needs `pip install "ray>=2.58"`.

    Without an address, a cluster that runs on this machine is used, or else one is started for the run. Lost workers
    are replaced, and machines that join the cluster get workers, up to the largest number.
    """

    workers: Workers = 2
    """Number of workers, or (minimum, maximum): the run starts with the minimum, and uses more as they come. A number
    alone is the maximum, with a minimum of 1."""
    num_cpus: NotNegative = 1.0
    """CPUs that each worker needs, which is also its number of threads."""
    num_gpus: NotNegative = 0.0
    """GPUs that each worker needs."""
    resources: Mapping[str, float] | None = None
    """Further resources that each worker needs, as in Ray, such as {"spot": 1}."""
    runtime_env: Mapping[str, Any] | None = None
    """Ray's runtime environment, such as {"working_dir": "."}."""
    address: str | None = None
    """Address of the cluster, such as "10.0.0.5:6379" or "auto". None: that of $RAY_ADDRESS."""
    in_flight: AtLeastOne = 1
    """Open tasks of each worker. 2 hides the network latency at a staleness of 1. A synchronous step then merges two
    tasks per worker."""
    lost_after_seconds: AboveZero = 10.0
    """Seconds without a sign of life after which a worker counts as lost. Its tasks go to other workers. Code that
    holds Python's GIL prevents signs of life."""
    respawn: bool = True
    """Whether lost workers are replaced."""
    dollars_per_hour: NotNegative = 0.0
    """Price of a worker, in dollars per hour."""

    kind: ClassVar[str] = "ray"
    workers_setting: ClassVar[str] = "workers"
    is_remote: ClassVar[bool] = True
    is_virtual: ClassVar[bool] = False
    computes: ClassVar[bool] = True
    mesh: ClassVar[None] = None
    faults: ClassVar[frozenset[FaultKind]] = frozenset({"kill", "leave", "slow", "freeze", "preempt"})

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def min_workers(self) -> int:
        """Number of workers with which the run starts."""
        return self.workers[0] if isinstance(self.workers, tuple | list) else 1

    @property
    def max_workers(self) -> int:
        """Largest number of workers at the same time."""
        return self.workers[1] if isinstance(self.workers, tuple | list) else self.workers

    @property
    def names(self) -> list[str]:
        """Names of the workers: w1, w2, ..."""
        return [f"w{number + 1}" for number in range(self.max_workers)]

    @property
    def fleet(self) -> Fleet:
        """The workers' names and needs."""
        same = {one.name: getattr(self, one.name) for one in fields(Fleet) if one.name != "names"}
        return Fleet(names=self.names, **same)

    def begin(self, closing: ExitStack) -> Open:
        """Connect to the cluster and start the actors, which import PyTorch while the job is prepared."""
        from oddlot.engines.ray.cluster import check_room, connect

        is_own, runtime_env, messages = connect(self.address, self.runtime_env, closing)
        fleet = replace(self.fleet, runtime_env=runtime_env)
        check_room(fleet, is_own)
        from oddlot.engines.ray.placement import StartedActors  # it needs Ray

        started = StartedActors(fleet)
        closing.callback(started.close)
        return partial(_open, self, started, messages, closing)


def _open(
    on: Ray,
    started: "StartedActors",
    messages: "RayMessages",
    closing: ExitStack,
    data: RunData,
    now: float,
    taken: Collection[NodeId],
) -> Opened:
    """Send the job to the workers."""
    from oddlot.engines.process_setup import WorkerSetup
    from oddlot.engines.ray.cluster import check_shared_memory
    from oddlot.engines.ray.engine import RayEngine
    from oddlot.engines.ray.ray_messages import FILE
    from oddlot.train.flat_buffer import FlatBuffer
    from oddlot.train.store import Pool

    messages.path = data.logs / FILE if data.logs else None
    check_shared_memory((on.in_flight + 1) * data.layout.bytes)
    setup = WorkerSetup.of(data, max(1, int(on.num_cpus)))
    engine = RayEngine(started, setup, data.logs, now, taken)
    closing.callback(engine.close)
    pool = Pool(lambda: FlatBuffer.empty(data.layout))
    return Opened(engine, pool, faults=engine.faults, wants_checkpoint=engine.head.wants_checkpoint)
