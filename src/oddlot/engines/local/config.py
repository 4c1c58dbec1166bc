"""`engine=Local(...)`: worker processes on this machine."""

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, ClassVar

from oddlot.core.support.errors import UsageError
from oddlot.core.support.user_warnings import warn
from oddlot.core.support.validation import NOT_IN_FILES, AtLeastOne
from oddlot.core.tasks import NodeId
from oddlot.engines.base import SPARE_VERSIONS, Open, Opened, PeerProcesses, RunData, cores
from oddlot.engines.local.fork_client import ForkClient, take_early
from oddlot.engines.processes.worker_settings import MAX_WORKERS, WorkerSettings
from oddlot.machines.machine import Machine

MANY_PER_CORE, MANY_ANYWHERE = 4, 8
"""Numbers of workers per CPU core and in total above which a warning is shown."""
MAX_THREADS = 256
"""Maximum number of threads of a worker. With too many threads, a process dies without a message."""
SPIN_SECONDS = 0.003
"""Seconds of polling for messages before hub and workers sleep, if there are spare cores."""


def _machines(value: object) -> str:
    if value is None or (isinstance(value, tuple | list) and all(isinstance(one, Machine) for one in value)):
        return ""
    return "a list with a Machine for each worker"


@dataclass(frozen=True)
class Local(WorkerSettings):
    """Worker processes on this machine.

    Use `as_if` to try a strategy with stragglers. Each worker then waits after each minibatch, until its task has taken
    as long as on the given machine. A task that takes longer is not delayed. `oddlot.machines.step_time_records` reads
    such machines from recorded traces.
    """

    workers: AtLeastOne = 2
    """Number of worker processes."""
    threads: AtLeastOne | None = None
    """PyTorch threads of each worker. Default: the CPU cores divided by the workers."""
    as_if: Annotated[tuple[Machine, ...] | None, _machines] = field(default=None, metadata=NOT_IN_FILES)
    """A machine for each worker. Its `seconds_per_sample` and `delay` set the worker's speed. Default: full speed."""

    kind: ClassVar[str] = "local"
    is_remote: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.as_if is not None and len(self.as_if) != self.workers:
            machines, workers = len(self.as_if), self.workers
            message = (
                f"as_if has {machines} machines, but there are {workers} workers: give one for each worker"
            )
            raise UsageError(message, "different_lengths", "as_if", machines=machines, workers=workers)
        if self.workers > MAX_WORKERS:
            message = f"workers = {self.workers}: one machine has at most {MAX_WORKERS}"
            raise UsageError(message, "too_many_workers", "workers", workers=self.workers, most=MAX_WORKERS)
        most = max(MAX_THREADS, cores())
        if self.threads is not None and self.threads > most:
            raise UsageError(
                f"threads = {self.threads} for each worker is above the limit of {most} (CPU cores: {cores()})",
                "too_many_threads",
                "threads",
                threads=self.threads,
                most=most,
            )

    @property
    def min_workers(self) -> int:
        """Number of worker processes."""
        return self.workers

    @property
    def mesh(self) -> PeerProcesses:
        """Settings of peers. They run in processes like workers."""
        return PeerProcesses(self._threads, self.as_if, self._fork_server)

    @property
    def _threads(self) -> int:
        return self.threads or max(1, cores() // self.workers)

    def begin(self, closing: ExitStack) -> Open:
        """Start the fork server. It imports PyTorch while the job is prepared."""
        return partial(_open, self, self._fork_server(closing), closing)

    def _fork_server(self, closing: ExitStack) -> ForkClient:
        self._warn_of_many()
        fork_server = take_early() or ForkClient()
        closing.callback(fork_server.close)
        return fork_server

    def _warn_of_many(self) -> None:
        """Warn of too many workers for the cores. Workers with `as_if` mostly wait, so there is no warning."""
        many = max(MANY_PER_CORE * cores(), MANY_ANYWHERE)
        if self.workers > many and self.as_if is None:
            each = self.workers // cores()
            warn(
                f"workers = {self.workers} on {cores()} CPU cores: at least {each} workers share each core, so a task "
                f"takes at least {each} times as long. Each worker is a process with its own memory. Use about "
                f"workers={cores()} (--workers {cores()})",
                "many_workers",
                workers=self.workers,
                cores=cores(),
            )


def _open(
    on: Local,
    fork_server: ForkClient,
    closing: ExitStack,
    data: RunData,
    now: float,
    taken: Collection[NodeId],
) -> Opened:
    """Allocate shared memory and start the workers."""
    from oddlot.engines.local.block_pool import BlockPool
    from oddlot.engines.local.engine import LocalEngine
    from oddlot.engines.local.shared_memory import Arena
    from oddlot.engines.local.worker import Setup
    from oddlot.engines.payloads import most_bytes

    layout, codec = data.layout, data.codec
    versions = on.workers * on.in_flight + SPARE_VERSIONS
    per_worker, loading = on.in_flight + 1, data.job.load_workers
    # A packet may be slightly larger than the block that it encodes, because of its header.
    block_bytes = max(layout.bytes, most_bytes(codec, layout))
    arena = Arena(versions + on.workers * per_worker, block_bytes)
    setup = Setup.of(
        data,
        on._threads,
        machines=tuple(on.as_if or ()),
        blocks=arena.blocks,
        block_bytes=block_bytes,
        spin_seconds=SPIN_SECONDS if on.workers * (on._threads + loading) < cores() else 0.0,
    )
    blocks = BlockPool(arena, layout, versions, on.workers, setup.encoder)
    engine = LocalEngine(fork_server, setup, arena, blocks, on, now, taken)
    closing.callback(engine.close)
    return Opened(engine, blocks, faults=engine.faults)
