"""`engine=Simulated(...)`: a simulated fleet under a virtual clock."""

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.core.support.validation import AtLeastOne, Seed, check_settings
from oddlot.core.tasks import NodeId
from oddlot.engines.base import SPARE_VERSIONS, FaultKind, Open, Opened, OpenMesh, RunData
from oddlot.machines.buying import Buying
from oddlot.machines.machine import Machine
from oddlot.machines.market import Fleet, Hub, Zone, check_buying, names_in, spot_zones

if TYPE_CHECKING:
    from oddlot.engines.mesh.simulated import MakePeer, SimulatedMesh
    from oddlot.engines.simulated.engine import Computation
    from oddlot.model.block_pool import Pool
    from oddlot.train.learner import Learner


@dataclass(frozen=True)
class Simulated:
    """A simulated fleet under a virtual clock. It trains the model in this process, or only simulates the time."""

    machines: Sequence[Machine | Zone]
    """Machines and zones of the fleet."""
    seed: Seed = 0
    """Random seed of the machines: their times, lifetimes and capacity."""
    in_flight: AtLeastOne = 1
    """Open tasks of each machine. 2 hides the network latency, at a staleness of 1."""
    computes: bool = True
    """Whether the model is trained. False: only time and cost are simulated, for large fleets."""
    hub: Hub = Hub()  # noqa: RUF009 - frozen, and without state
    """The hub's machine."""
    buying: Buying | None = None
    """Policy that adds on-demand machines to spot zones to meet a deadline. None: the machines do not change."""

    kind: ClassVar[str] = "simulated"
    workers_setting: ClassVar[str] = "machines"
    is_remote: ClassVar[bool] = False
    is_virtual: ClassVar[bool] = True
    respawn: ClassVar[bool] = True
    faults: ClassVar[frozenset[FaultKind]] = frozenset({"kill", "leave", "slow", "freeze", "preempt"})

    @classmethod
    def of(cls, fleet: Fleet, seed: int = 0, in_flight: int = 1, computes: bool = True) -> "Simulated":
        """Make an engine of a fleet, for example from `oddlot.read_fleet`. Raise UsageError for other values."""
        if not isinstance(fleet, Fleet):
            raise InvalidValue("fleet", fleet, "a Fleet, for example from oddlot.read_fleet(path)")
        return cls(fleet.machines, seed, in_flight, computes, fleet.hub, fleet.buying)

    def __post_init__(self) -> None:
        check_settings(self)
        _check_machines(self.machines)
        check_buying(self.machines, self.buying)
        names = names_in([*self.machines, *self._substitutes])
        if not names:
            message = "machines is empty: a fleet needs at least one machine"
            raise UsageError(message, "no_machines", "machines")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            message = f"two machines have the name {twice!r}: give each machine its own name"
            raise UsageError(message, "name_twice", "machines", name=twice)

    @property
    def dollars_per_hour(self) -> float:
        """Price of the most expensive machine, including the hub."""
        prices = (
            max(one.prices.values) if isinstance(one, Zone) else one.dollars_per_hour
            for one in [*self.machines, *self._substitutes]
        )
        return max(self.hub.dollars_per_hour, *prices)

    @property
    def min_workers(self) -> int:
        """Number of machines outside zones, because zones may have no capacity at the start."""
        return sum(not isinstance(one, Zone) for one in self.machines)

    @property
    def max_workers(self) -> int:
        """Largest number of machines at one time."""
        return sum(one.count if isinstance(one, Zone) else 1 for one in self.machines)

    @property
    def names(self) -> list[str]:
        """Names of the machines, without those that the buying policy adds."""
        return names_in(self.machines)

    @property
    def _substitutes(self) -> list[Zone]:
        """Zones of on-demand machines that the buying policy can order from."""
        return [zone.substitute for zone in spot_zones(self.machines)] if self.buying else []

    @property
    def mesh(self) -> OpenMesh:
        """All peers run in this process."""
        return partial(_open_mesh, self)

    def begin(self, closing: ExitStack) -> Open:
        """Return the function that opens the engine. Nothing is prepared."""
        return partial(_open, self)


def _check_machines(machines: object) -> None:
    if not isinstance(machines, Sequence) or not all(isinstance(one, Machine | Zone) for one in machines):
        must = "a list of oddlot.Machine and oddlot.machines.Zone (for a fleet file: Simulated.of(read_fleet(FILE)))"
        raise InvalidValue("machines", machines, must)
    for one in machines:
        if isinstance(one, Machine) and one.zone:
            message = f"machine {one.name} has zone = {one.zone!r}: only a Zone sets it, so leave it out"
            raise UsageError(message, "machine_of_a_zone", "machines", machine=one.name, zone=one.zone)


def _open(on: Simulated, run: RunData, now: float, taken: Collection[NodeId]) -> Opened:
    """Open the engine. Raise UsageError if the versions of the model would not fit into this machine's memory."""
    from oddlot.engines.buying_plan import BuyingPlan
    from oddlot.engines.simulated.compute import DataBytes
    from oddlot.engines.simulated.engine import SimulatedHub
    from oddlot.engines.simulated.purchasing import seconds_needed
    from oddlot.model.block_pool import Pool
    from oddlot.model.flat_buffer import FlatBuffer

    plan = BuyingPlan.of(on.buying, run.work, run.job.batch_size)
    if plan is not None:
        plan.check(now, seconds_needed(on.machines, plan))
    data = DataBytes.of(run.job, run.shards, run.keep_shards)
    pool = Pool(lambda: FlatBuffer.empty(run.layout))
    computation = _computation(on, run, pool)
    engine = SimulatedHub(
        on.machines, computation, run.job.batch_size, on.seed, now, taken, on.hub, data, plan
    )
    return Opened(engine, pool, on.hub, engine)


def _computation(on: Simulated, run: RunData, pool: "Pool") -> "Computation":
    from oddlot.engines.payloads import most_bytes
    from oddlot.engines.simulated.compute import ExactComputation, NullComputation

    size = run.layout.bytes
    if not on.computes:
        return NullComputation(size, most_bytes(run.codec, run.layout))
    blocks = (on.max_workers + sum(zone.count for zone in on._substitutes)) * on.in_flight + SPARE_VERSIONS
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if blocks * size > 0.8 * memory:
        raise _not_enough_memory(on, blocks, size, memory)
    return ExactComputation(_learner(run), pool, run.codec)


def _open_mesh(
    on: Simulated, run: RunData, make: "MakePeer", now: float, taken: Collection[NodeId]
) -> "SimulatedMesh":
    """Open a mesh of simulated peers."""
    from oddlot.engines.mesh.simulated import PeerComputation, SimulatedMesh
    from oddlot.model.block_pool import Pool
    from oddlot.model.flat_buffer import FlatBuffer

    if on.buying is not None:
        message = "a buying policy needs a strategy with a hub: leave `buying` out to simulate a mesh"
        raise UsageError(message, "buying_on_mesh", "buying")
    pool = Pool(lambda: FlatBuffer.empty(run.layout))
    computation = PeerComputation(_learner(run), pool, run.codec)
    return SimulatedMesh(on.machines, computation, make, run.job.batch_size, on.seed, now, taken)


def _learner(run: RunData) -> "Learner":
    """Return the learner that computes the tasks of all machines in this process."""
    from oddlot.engines.payloads import users_code
    from oddlot.engines.processes.process_setup import learner_of
    from oddlot.train.devices import choose_device

    with users_code("the simulator"):
        if run.job.worker_init is not None:
            run.job.worker_init()
        device = choose_device(run.job.device)
        return learner_of(run, device, lambda: 0.0)


def _not_enough_memory(on: Simulated, versions: int, each: int, memory: int) -> UsageError:
    """Return the error for versions that do not fit into memory."""
    return UsageError(
        f"{on.max_workers} machines x {on.in_flight} tasks need up to {versions} versions of {each / 1e6:.0f} MB: "
        f"{versions * each / 1e9:.1f} GB of this machine's {memory / 1e9:.1f} GB. "
        "Simulate fewer machines, or only the time with computes=False (--no-compute)",
        "not_enough_memory",
        versions=versions,
        bytes=versions * each,
        memory=memory,
    )
