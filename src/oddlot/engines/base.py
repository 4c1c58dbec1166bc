"""Interfaces of engines and of their settings. An engine runs tasks on machines."""

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

from oddlot.core.conductor_commands import MAX_KEPT
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Message, Port
from oddlot.machines.buying import Work
from oddlot.machines.market import Hub
from oddlot.train.learner_inputs import LearnerInputs

if TYPE_CHECKING:
    from oddlot.engines.local.fork_client import ForkClient
    from oddlot.engines.mesh.simulated import MakePeer, SimulatedMesh
    from oddlot.machines.machine import Machine
    from oddlot.model.block_pool import BlockSource
    from oddlot.wire.codec import Codec

Received_co = TypeVar("Received_co", covariant=True)
SPARE_VERSIONS = MAX_KEPT + 8
"""Versions in memory in addition to the versions of open tasks: kept versions, the newest version, and a version that
is evaluated."""
FaultKind = Literal["kill", "leave", "slow", "freeze", "preempt"]
"""Kinds of faults of a worker. `preempt`: a capacity model that preempts workers and lets them return."""


class Mailbox(Protocol[Received_co]):
    """A clock and a queue of messages. The items are messages for a hub, or envelopes for several hosts."""

    @property
    def now(self) -> float:
        """Seconds since the start of the run."""

    @property
    def is_spent(self) -> bool:
        """Whether no further message will arrive: no worker computes, and none will join."""

    def next(self, until: float) -> Received_co | None:
        """Return the next message, or None if no message arrives before the time `until`."""


class Engine(Mailbox[Message], Port, Protocol):
    """The interface of an engine: the mailbox and the port of a host."""


class FaultInjection(Protocol):
    """Fault injection into workers. Optional: `EngineConfig.faults` lists the supported kinds."""

    def kill(self, node: NodeId) -> None:
        """Kill the worker immediately, as `kill -9` does. `Lost` follows."""

    def leave(self, node: NodeId) -> None:
        """Send a preemption notice to the worker, as SIGTERM does. It finishes its minibatch and leaves; `Leaving` and
        `Lost` follow."""

    def slow(self, node: NodeId, factor: float) -> None:
        """Slow the worker down: it waits after each step for `factor` times the step's duration. 0 ends the fault."""

    def freeze(self, node: NodeId) -> None:
        """Suspend the worker, as SIGSTOP does. No message follows."""

    def thaw(self, node: NodeId) -> None:
        """Resume a frozen worker, as SIGCONT does."""

    def bar(self, machine: str, barred: bool) -> None:
        """Set whether a machine is barred: it gets no new worker after its worker has ended."""


@dataclass(frozen=True, kw_only=True)
class RunData(LearnerInputs):
    """The inputs of an engine from a run."""

    codec: "Codec"
    logs: Path | None = None
    """Folder for the output of workers that fail on other machines. If None, the output is not kept."""
    work: Callable[[float | None], Work | None] | None = None
    """Returns the work of the run, given the expected number of epochs if it is set. Only for a buying policy."""

    @property
    def encoder(self) -> "Codec | None":
        """Return the codec of updates, or None if they are sent unencoded."""
        from oddlot.wire.plain import Plain

        return None if isinstance(self.codec, Plain) else self.codec


@dataclass(frozen=True)
class Opened:
    """An open engine and its parts."""

    engine: Engine
    pool: "BlockSource"
    """Allocator of the store's blocks."""
    hub: Hub = Hub()  # noqa: RUF009 - frozen, and without state
    """Duration and price of the hub's work."""
    faults: FaultInjection | None = None
    """Fault injection into workers. None if not supported."""
    wants_checkpoint: Callable[[], bool] = bool
    """Returns whether a checkpoint is due, because the engine may fail soon. Called after each message."""


@dataclass(frozen=True)
class PeerProcesses:
    """Settings of mesh peers that run in processes on this machine."""

    threads: int
    """PyTorch threads of each peer."""
    as_if: "tuple[Machine, ...] | None"
    """A machine for each peer. The peer imitates the machine's speed. If None, peers run at full speed."""
    begin: "Callable[[ExitStack], ForkClient]"
    """Starts the fork server. It imports PyTorch while the job is prepared."""


OpenMesh = Callable[["RunData", "MakePeer", float, Collection[NodeId]], "SimulatedMesh"]
"""Opens a mesh on a virtual clock. Arguments: the function that makes a peer, the start time of the clock, and names
that its peers must not use."""
Open = Callable[[RunData, float, Collection[NodeId]], Opened]
"""Opens an engine. Arguments: the run's data, the start time of the clock, and names that its workers must not use."""


@runtime_checkable
class EngineConfig(Protocol):
    """Interface of an engine's settings, as passed to `fit(engine=...)`."""

    @property
    def kind(self) -> str:
        """Return the name of the engine: `local`, `ray`, `simulated`."""

    @property
    def min_workers(self) -> int:
        """Return the minimum number of workers."""

    @property
    def max_workers(self) -> int:
        """Return the maximum number of workers at the same time."""

    @property
    def workers_setting(self) -> str:
        """Return the name of the setting for the number of workers, for errors."""

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the machines. The first worker of each machine has the same name."""

    @property
    def in_flight(self) -> int:
        """Return the number of open tasks per worker."""

    @property
    def is_virtual(self) -> bool:
        """Whether the clock is simulated."""

    @property
    def is_remote(self) -> bool:
        """Whether workers may run on other machines, possibly with other devices."""

    @property
    def computes(self) -> bool:
        """Whether tasks are computed. False: the run has only times, and no model."""

    @property
    def respawn(self) -> bool:
        """Whether lost workers may be replaced."""

    @property
    def dollars_per_hour(self) -> float:
        """Return the highest price of a machine, in dollars per hour. 0: the run costs nothing."""

    @property
    def faults(self) -> Collection[FaultKind]:
        """Return the kinds of faults that `Opened.faults` can inject."""

    @property
    def mesh(self) -> PeerProcesses | OpenMesh | None:
        """Return the settings or the function that an engine needs to run a mesh, or None if not supported."""

    def begin(self, closing: ExitStack) -> Open:
        """Start slow preparations early. Return the function that opens the engine; `closing` closes the engine."""


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
