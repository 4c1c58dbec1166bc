"""The interfaces of engines, which run tasks on machines, and of their settings."""

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

from oddlot.core.conductor_commands import MAX_KEPT
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Message, Port
from oddlot.machines.market import Hub
from oddlot.train.learner_inputs import LearnerInputs

if TYPE_CHECKING:
    from oddlot.engines.local.fork_client import ForkClient
    from oddlot.engines.mesh.simulated import MakePeer, SimulatedMesh
    from oddlot.machines.machine import Machine
    from oddlot.model.weight_store import BlockSource
    from oddlot.wire.codec import Codec

Received_co = TypeVar("Received_co", covariant=True)
SPARE_VERSIONS = MAX_KEPT + 8
"""Versions besides those that tasks hold: kept by the strategy, the newest one, and one that is evaluated."""
FaultKind = Literal["kill", "leave", "slow", "freeze", "preempt"]
"""Faults that happen to a worker. `preempt` is a capacity model that takes workers away and brings them back."""


class Mailbox(Protocol[Received_co]):
    """A clock and a queue of messages: those of a hub, or envelopes."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    @property
    def is_spent(self) -> bool:
        """Whether no message will ever come of itself: no worker computes, and none will join."""

    def next(self, until: float) -> Received_co | None:
        """Return the next message, or None when there is none before the time `until`."""


class Engine(Mailbox[Message], Port, Protocol):
    """A clock, a queue and a port: all that a host needs."""


class FaultInjection(Protocol):
    """Fault injection. Optional; `faults` of the engine's config has the supported kinds."""

    def kill(self, node: NodeId) -> None:
        """Kill the worker immediately, as `kill -9` does. `Lost` follows."""

    def leave(self, node: NodeId) -> None:
        """Give the worker notice of a preemption, as SIGTERM does. It finishes its minibatch and leaves; `Leaving` and
        `Lost` follow."""

    def slow(self, node: NodeId, factor: float) -> None:
        """Slow the worker down: it waits `factor` times as long as each step after it. 0 ends this."""

    def freeze(self, node: NodeId) -> None:
        """Stop the worker where it is, as SIGSTOP does; no message follows."""

    def thaw(self, node: NodeId) -> None:
        """Let a frozen worker continue."""

    def bar(self, machine: str, barred: bool) -> None:
        """Set whether a machine stays away once its worker has ended."""


@dataclass(frozen=True, kw_only=True)
class RunData(LearnerInputs):
    """The inputs that an engine needs from a run."""

    codec: "Codec"
    logs: Path | None = None
    """Folder for the output of workers that fail on other machines. None: it is not kept."""

    @property
    def encoder(self) -> "Codec | None":
        """Return the codec of updates; None if they travel as they are."""
        from oddlot.wire.plain import Plain

        return None if isinstance(self.codec, Plain) else self.codec


@dataclass(frozen=True)
class Opened:
    """An open engine and its parts."""

    engine: Engine
    pool: "BlockSource"
    """Allocator of the store's blocks."""
    hub: Hub = Hub()  # noqa: RUF009 - frozen, and without state
    """Duration of the hub's work, and its price."""
    faults: FaultInjection | None = None
    """Injects faults into workers. None: not supported."""
    wants_checkpoint: Callable[[], bool] = bool
    """Returns whether a checkpoint is due, because the engine may fail soon. Called after each message."""


@dataclass(frozen=True)
class PeerProcesses:
    """Peers of a mesh that run in processes of this machine."""

    threads: int
    """PyTorch threads of each peer."""
    as_if: "tuple[Machine, ...] | None"
    """A machine for each peer, whose speed it has. None: full speed."""
    begin: "Callable[[ExitStack], ForkClient]"
    """Starts the fork server, which imports PyTorch while the job is prepared."""


OpenMesh = Callable[["RunData", "MakePeer", float, Collection[NodeId]], "SimulatedMesh"]
"""Opens a mesh on a virtual clock. Arguments: the function that makes a peer, the time at which the clock starts, and
names that its peers must not have."""
Open = Callable[[RunData, float, Collection[NodeId]], Opened]
"""Opens an engine. Arguments: the time at which its clock starts, and names that its workers must not have."""


@runtime_checkable
class EngineConfig(Protocol):
    """Base class of the settings of an engine, as passed to `fit(engine=...)`."""

    @property
    def kind(self) -> str:
        """Return the name of the engine: `local`, `ray`, `simulated`."""

    @property
    def min_workers(self) -> int:
        """Return the number of workers with which a run starts."""

    @property
    def max_workers(self) -> int:
        """Return the largest number of workers at the same time."""

    @property
    def workers_setting(self) -> str:
        """Return the setting with the number of workers, for errors."""

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the machines: the names of their first workers."""

    @property
    def in_flight(self) -> int:
        """Return the number of open tasks per worker."""

    @property
    def is_virtual(self) -> bool:
        """Whether the clock is simulated."""

    @property
    def is_remote(self) -> bool:
        """Whether workers may run on other machines, which may have other devices."""

    @property
    def computes(self) -> bool:
        """Whether tasks are computed; False: the run has times and no model."""

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
        """Return how peers of a mesh run on the engine. None: not supported."""

    def begin(self, closing: ExitStack) -> Open:
        """Start slow work early. `closing` closes what was opened."""


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
