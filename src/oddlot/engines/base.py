"""What an engine is, and what `fit` takes as one: the contracts between a run and the machines that it uses."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from oddlot.core.conductor_commands import MAX_KEPT
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Message, Port
from oddlot.machines.market import Hub

if TYPE_CHECKING:
    from torch import Tensor

    from oddlot.engines.simulated.compute import Shadow
    from oddlot.train.data import Cuts
    from oddlot.train.flat_buffer import Layout
    from oddlot.train.job import Job
    from oddlot.train.store import BlockSource
    from oddlot.wire.codec import Codec

SPARE_VERSIONS = MAX_KEPT + 8
"""Versions beside those that tasks hold: kept by the strategy, the newest one, and one that is evaluated."""
FaultKind = Literal["kill", "leave", "slow", "freeze", "preempt"]
"""Faults that happen to a worker. `preempt` is a capacity model that takes workers away and brings them back."""


class Mailbox(Protocol):
    """A clock and a queue. In the simulator the clock jumps; elsewhere it runs."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    @property
    def is_spent(self) -> bool:
        """Whether no message will ever come of itself: no worker computes, and none will join."""

    def next(self, until: float) -> Message | None:
        """Return the next message, or None when there is none before the time `until`."""


class Engine(Mailbox, Port, Protocol):
    """A clock, a queue and a port: all that a host needs."""


class FaultInjection(Protocol):
    """Faults on purpose. An engine may have it; its config's `faults` says which of them work."""

    def kill(self, node: NodeId) -> None:
        """End the worker at once, as `kill -9` does; `Lost` follows."""

    def leave(self, node: NodeId) -> None:
        """Tell the worker that its machine is reclaimed, as SIGTERM does: it hands over what it has done and goes;
        `Leaving` and `Lost` follow."""

    def slow(self, node: NodeId, factor: float) -> None:
        """Have the worker wait after each step `factor` times as long as the step took; 0 ends it."""

    def freeze(self, node: NodeId) -> None:
        """Stop the worker where it is, as SIGSTOP does; no message follows."""

    def thaw(self, node: NodeId) -> None:
        """Let a frozen worker continue."""

    def bar(self, machine: str, barred: bool) -> None:
        """Set whether a machine stays away once its worker has ended."""


@dataclass(frozen=True)
class RunData:
    """What an engine needs to know of a run."""

    job: "Job"
    layout: "Layout"
    constants: "Mapping[str, Tensor]"
    codec: "Codec"
    seed: int
    shards: "Cuts"
    keep_shards: bool = True


@dataclass(frozen=True)
class Opened:
    """An open engine, and what belongs to it."""

    engine: Engine
    pool: "BlockSource"
    """Where the store's blocks come from."""
    shadow: "Shadow | None" = None
    """The store of a run that computes nothing; None: the run has a real one."""
    hub: Hub = Hub()  # noqa: RUF009 - frozen, and without state
    """The hub's own time and price, beside the machines."""
    faults: FaultInjection | None = None
    """What injects faults into the engine's workers; None: it cannot."""


Open = Callable[[RunData, float, Collection[NodeId]], Opened]
"""Opens an engine whose clock begins at this time. None of its nodes has one of these names."""


@runtime_checkable
class EngineConfig(Protocol):
    """What `fit(engine=...)` takes: an engine's settings, what it can do, and how to open it."""

    @property
    def kind(self) -> str:
        """The engine's name in files: `local`, `simulated`."""

    @property
    def workers(self) -> int:
        """The largest number of workers at once."""

    @property
    def workers_setting(self) -> str:
        """The setting that says how many workers there are, as errors name it."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the machines: the ids of their first workers."""

    @property
    def in_flight(self) -> int:
        """The number of tasks that a worker holds at once."""

    @property
    def is_virtual(self) -> bool:
        """Whether the clock is simulated."""

    @property
    def computes(self) -> bool:
        """Whether tasks are computed; False: the run has times and no model."""

    @property
    def respawn(self) -> bool:
        """Whether lost workers may be replaced."""

    @property
    def dollars_per_hour(self) -> float:
        """The highest price of a machine; 0: the run costs nothing."""

    @property
    def faults(self) -> Collection[FaultKind]:
        """The faults that `Opened.faults` can inject."""

    def begin(self, closing: ExitStack) -> Open:
        """Start what takes long before anything else is known; put what must be closed on `closing`."""


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
