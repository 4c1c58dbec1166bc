"""`engine=Local(...)`: worker processes of this machine."""

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch

from oddlot.core.errors import UsageError
from oddlot.core.tasks import NodeId
from oddlot.core.user_warnings import warn
from oddlot.core.validation import AtLeastOne, NotNegative, check_settings
from oddlot.engines.base import SPARE_VERSIONS, FaultKind, Open, Opened, RunData, cores
from oddlot.engines.local.block_pool import Blocks
from oddlot.engines.local.engine import LocalEngine
from oddlot.engines.local.fork_client import ForkServer, take_early
from oddlot.engines.local.shared_memory import Arena
from oddlot.engines.local.worker import Setup
from oddlot.engines.payloads import most_bytes
from oddlot.machines.machine import Machine
from oddlot.wire.plain import Plain

MAX_WORKERS = 10_000
"""each is a process that has PyTorch in it"""
MANY_PER_CORE, MANY_ANYWHERE = 4, 8
"""workers on each processor, or in all, above which there is a warning"""
MAX_THREADS = 256
"""for tests on small machines; with too many a process ends without a word"""
SPIN_SECONDS = 0.003
"""how long hub and workers look for messages before they sleep, where a core is to spare"""


def _machines(value: object) -> str:
    if value is None or (isinstance(value, tuple | list) and all(isinstance(one, Machine) for one in value)):
        return ""
    return "a Machine for each worker"


@dataclass(frozen=True)
class Local:
    """Worker processes on this machine.

    `threads` each (None: the cores shared out evenly), `in_flight` tasks at once (2 hides the way to the hub and back,
    at a staleness of 1), replaced when they die if `respawn`. `dollars_per_hour` is the price of one.

    With `as_if`, a machine for each worker, a worker takes as long for its tasks as that machine would under the
    virtual clock, by waiting after each minibatch: stragglers to try a strategy on, which
    `oddlot.machines.step_time_records` reads from records of real ones. A task that takes longer than
    that by itself waits no more, so that a freeze may be made up for by waiting less. Of a machine only
    `seconds_per_sample` and `delay` are looked at.
    """

    workers: AtLeastOne = 2
    threads: AtLeastOne | None = None
    in_flight: AtLeastOne = 1
    respawn: bool = True
    dollars_per_hour: NotNegative = 0.0
    as_if: Annotated[tuple[Machine, ...] | None, _machines] = None

    kind: ClassVar[str] = "local"
    workers_setting: ClassVar[str] = "workers"
    is_virtual: ClassVar[bool] = False
    computes: ClassVar[bool] = True
    faults: ClassVar[frozenset[FaultKind]] = frozenset({"kill", "leave", "slow", "freeze", "preempt"})

    def __post_init__(self) -> None:
        check_settings(self)
        if self.as_if is not None and len(self.as_if) != self.workers:
            machines, workers = len(self.as_if), self.workers
            told = f"as_if has {machines} machines for {workers} workers"
            raise UsageError(told, "different_lengths", "as_if", machines=machines, workers=workers)
        if self.workers > MAX_WORKERS:
            told = f"workers = {self.workers}: {MAX_WORKERS} is the most on one machine"
            raise UsageError(told, "too_many_workers", "workers", workers=self.workers, most=MAX_WORKERS)
        most = max(MAX_THREADS, cores())
        if self.threads is not None and self.threads > most:
            raise UsageError(
                f"threads = {self.threads} for each worker: {cores()} processors are here, {most} is the most",
                "too_many_threads",
                "threads",
                threads=self.threads,
                most=most,
            )

    @property
    def names(self) -> list[str]:
        """w1, w2, ..."""
        return [f"w{number + 1}" for number in range(self.workers)]

    def begin(self, closing: ExitStack) -> Open:
        """The fork server, which is to import PyTorch while the job is made ready."""
        self._warn_of_many()
        fork_server = take_early() or ForkServer()
        closing.callback(fork_server.close)
        return partial(_open, self, fork_server, closing)

    def _warn_of_many(self) -> None:
        """Workers that mostly wait for a processor; those with `as_if` wait on purpose."""
        many = max(MANY_PER_CORE * cores(), MANY_ANYWHERE)
        if self.workers > many and self.as_if is None:
            each = self.workers // cores()
            warn(
                f"workers = {self.workers} on {cores()} processors: {each} workers or more share each one, so a task "
                f"takes {each} times as long or longer. Each worker is a process with its own memory. Use about "
                f"workers={cores()} (--workers {cores()})",
                "many_workers",
                workers=self.workers,
                cores=cores(),
            )


def _open(
    on: Local,
    fork_server: ForkServer,
    closing: ExitStack,
    data: RunData,
    now: float,
    taken: Collection[NodeId],
) -> Opened:
    """Shared memory laid out, workers asked for."""
    layout, codec = data.layout, data.codec
    versions = on.workers * on.in_flight + SPARE_VERSIONS
    per_worker = on.in_flight + 1
    # A packet may be a little larger than the block that it encodes: its words travel with it.
    block_bytes = max(layout.bytes, most_bytes(codec, layout))
    arena = Arena(versions + on.workers * per_worker, block_bytes)
    threads = on.threads or max(1, cores() // on.workers)
    setup = Setup(
        job=data.job,
        layout=layout,
        constants=data.constants,
        codec=None if isinstance(codec, Plain) else codec,
        seed=data.seed,
        shards=data.shards,
        keep_shards=data.keep_shards,
        threads=threads,
        default_dtype=torch.get_default_dtype(),
        default_device=torch.get_default_device(),
        machines=tuple(on.as_if or ()),
        blocks=arena.blocks,
        block_bytes=block_bytes,
        spin_seconds=SPIN_SECONDS if on.workers * threads < cores() else 0.0,
    )
    blocks = Blocks(arena, layout, versions, on.workers, setup.codec)
    engine = LocalEngine(
        fork_server, setup, arena, blocks, on.names, on.respawn, on.dollars_per_hour, now, taken
    )
    closing.callback(engine.close)
    return Opened(engine, blocks, faults=engine.faults)
