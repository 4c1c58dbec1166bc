"""Where a run takes place: what `fit` takes as `on`, and what an engine is opened with."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from oddlot.core.conductor import MOST_KEPT
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Port
from oddlot.engines.loop import Faults, Mailbox
from oddlot.engines.payloads import Shadow
from oddlot.machines.market import Hub
from oddlot.train.data import Cuts
from oddlot.train.flat_buffer import Layout
from oddlot.train.job import Job
from oddlot.train.store import BlockSource
from oddlot.wire.codec import Codec

SPARE_VERSIONS = MOST_KEPT + 8
"""beside those that tasks hold: what a strategy keeps, the newest one, and what is evaluated"""


class Engine(Mailbox, Port, Faults, Protocol):
    """A clock, a queue and a port in one, with misfortune on request."""


@dataclass(frozen=True)
class Numbers:
    """What every engine must know about the numbers of a run."""

    job: Job
    layout: Layout
    constants: Mapping[str, Tensor]
    codec: Codec
    seed: int
    shards: Cuts
    keep_shards: bool = True


@dataclass(frozen=True)
class Opened:
    """An open engine, and where the store's blocks come from."""

    engine: Engine
    pool: BlockSource
    shadow: Shadow | None = None
    """in the store's stead, where the maths is skipped"""
    hub: Hub = Hub()  # noqa: RUF009 - frozen, and without state
    """what takes its time and costs its money beside the machines"""


Open = Callable[[Numbers, float, Collection[NodeId]], Opened]
"""Opens an engine whose clock begins at this time, and none of whose nodes is called as one of these."""


class Place(Protocol):
    """Plain settings of a place, and the way to begin there."""

    @property
    def workers(self) -> int:
        """How many nodes there are at most at once."""

    @property
    def names(self) -> Sequence[str]:
        """What the nodes are called in their first lives."""

    @property
    def in_flight(self) -> int:
        """How many tasks a node holds at once."""

    def begin(self, closing: ExitStack) -> Open:
        """Start what takes long before anything else is known; whatever is opened is put on `closing`."""


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
