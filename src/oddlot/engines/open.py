"""Where a run takes place, as plain settings, and how to open it."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oddlot.core.errors import UsageError
from oddlot.engines.arena import Arena
from oddlot.engines.blocks import Blocks
from oddlot.engines.local import LocalEngine
from oddlot.engines.numbers import Exact, Shadow, packet_bytes, users_code
from oddlot.engines.nursery import Nursery
from oddlot.engines.simulator import Simulator
from oddlot.engines.worker import Setup
from oddlot.machines.machine import Machine
from oddlot.train.job import Job
from oddlot.train.layout import FlatBuffer, Layout
from oddlot.train.learner import Learner
from oddlot.train.store import Blocks as StoreBlocks
from oddlot.train.store import Pool
from oddlot.wire.codec import Codec, Plain

SPARE_VERSIONS = 8
"""beside those that tasks hold: for evaluation, checkpoints and versions that a strategy keeps"""

SPIN_SECONDS = 0.003
"""how long hub and workers look for messages before they sleep, where a core is to spare"""


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Local:
    """Worker processes on this machine.

    `threads` each (None: the cores shared out evenly), `in_flight` tasks at once (2 hides the way to the hub and back,
    at a staleness of 1), replaced when they die if `respawn`. `dollars_per_hour` is the price of one.
    """

    workers: int = 2
    threads: int | None = None
    in_flight: int = 1
    respawn: bool = True
    dollars_per_hour: float = 0.0

    def __post_init__(self) -> None:
        for name in ("workers", "in_flight"):
            if getattr(self, name) < 1:
                raise UsageError(f"Local({name}={getattr(self, name)}): at least 1 is needed")


@dataclass(frozen=True)
class Simulated:
    """A fleet under a virtual clock. `maths=False` keeps the time and trains nothing, for large fleets."""

    machines: Sequence[Machine]
    seed: int = 0
    in_flight: int = 1
    maths: bool = True

    def __post_init__(self) -> None:
        names = [machine.name for machine in self.machines]
        if not names:
            raise UsageError("Simulated(machines=[]): a fleet has at least one machine")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"two machines are called {twice!r}: give each its own name")

    @property
    def workers(self) -> int:
        """How many machines there are at most at once."""
        return len(self.machines)


@dataclass(frozen=True)
class Numbers:
    """What every engine must know about the numbers of a run."""

    job: Job
    layout: Layout
    constants: Mapping[str, Tensor]
    codec: Codec
    seed: int
    shards: int


@dataclass
class Opened:
    """An open engine: its clock and port in one, and where the store's blocks come from."""

    engine: LocalEngine | Simulator
    pool: StoreBlocks
    shadow: Shadow | None = None
    nursery: Nursery | None = None

    def close(self) -> None:
        """End what was started."""
        if isinstance(self.engine, LocalEngine):
            self.engine.close()


def open_local(on: Local, numbers: Numbers, nursery: Nursery, now: float, taken: Collection[str]) -> Opened:
    """Shared memory laid out, workers asked for; none of them is called as one of `taken`."""
    layout, codec = numbers.layout, numbers.codec
    versions = on.workers * on.in_flight + SPARE_VERSIONS
    per_worker = on.in_flight + 1
    # A packet may be a little larger than the block that it encodes: its words travel with it.
    block_bytes = max(layout.bytes, packet_bytes(codec, FlatBuffer.empty(layout)))
    arena = Arena(versions + on.workers * per_worker, block_bytes)
    threads = on.threads or max(1, cores() // on.workers)
    setup = Setup(
        job=_portable(numbers.job),
        layout=layout,
        constants={name: _array(tensor) for name, tensor in numbers.constants.items()},
        codec=None if isinstance(codec, Plain) else codec,
        seed=numbers.seed,
        shards=numbers.shards,
        threads=threads,
        blocks=arena.blocks,
        block_bytes=block_bytes,
        spin_seconds=SPIN_SECONDS if on.workers * threads < cores() else 0.0,
    )
    blocks = Blocks(arena, layout, versions, on.workers, setup.codec)
    engine = LocalEngine(
        nursery, setup, arena, blocks, on.workers, on.respawn, on.dollars_per_hour, now, taken
    )
    return Opened(engine, blocks)


def open_simulated(on: Simulated, numbers: Numbers, now: float, taken: Collection[str]) -> Opened:
    """A fleet from nothing. Refuses one whose versions would not fit into this machine's memory."""
    layout = numbers.layout
    pool = Pool(lambda: FlatBuffer.empty(layout))
    if not on.maths:
        shadow = Shadow(layout.bytes, packet_bytes(numbers.codec, FlatBuffer.empty(layout)))
        return Opened(Simulator(on.machines, shadow, numbers.job.batch, on.seed, now, taken), pool, shadow)
    blocks = on.workers * on.in_flight + SPARE_VERSIONS
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if blocks * layout.bytes > 0.8 * memory:
        raise UsageError(
            f"{on.workers} machines x {on.in_flight} tasks hold up to {blocks} versions "
            f"of {layout.bytes / 1e6:.0f} MB, "
            f"together {blocks * layout.bytes / 1e9:.1f} GB of this machine's {memory / 1e9:.1f} GB: "
            "simulate fewer machines, or keep only the time with maths=False"
        )
    with users_code("the simulator"):
        learner = Learner(numbers.job, layout, numbers.constants, numbers.seed, numbers.shards)
    exact = Exact(learner, pool, numbers.codec)
    return Opened(Simulator(on.machines, exact, numbers.job.batch, on.seed, now, taken), pool)


def _portable(job: Job) -> Job:
    """The job with its tensors as arrays, which workers share instead of copying."""
    return replace(job, data=_arrays(job.data), evaluation=_arrays(job.evaluation))


def _arrays(data: Any) -> Any:
    if (
        isinstance(data, tuple | list)
        and data
        and all(isinstance(part, Tensor | np.ndarray) for part in data)
    ):
        return tuple(_array(part) if isinstance(part, Tensor) else part for part in data)
    return data


def _array(tensor: Tensor) -> Any:
    """The numbers as an array; dtypes that numpy has not (bfloat16) stay a tensor."""
    tensor = tensor.detach().cpu()
    return tensor if tensor.dtype == torch.bfloat16 else tensor.numpy()
