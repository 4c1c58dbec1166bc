"""Processes of benchmarks, forked from a server that has imported PyTorch, so that each starts in milliseconds."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import torch

from oddlot.engines.local.orphans import die_with_parent

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["torch._dynamo", "benchmarks.faults_job", "benchmarks.slide.speed", "benchmarks.stragglers.networks"]
)
"""Preloaded modules. DistributedDataParallel imports torch._dynamo. This takes as long as importing PyTorch."""
Asked = TypeVar("Asked")
Found = TypeVar("Found")


def in_processes(run: Callable[[Asked], Found], asked: Sequence[Asked]) -> list[Found]:
    """Return `run(one)` for each of `asked`, in one single-threaded process per core. Suited to virtual clocks only."""
    return list(pool().map(run, asked))


POOLS: dict[str, ProcessPoolExecutor] = {}
"""Process pools by $ODDLOT_DATA. They are reused between runs, because of their imports."""


def pool() -> ProcessPoolExecutor:
    """Return the process pool for the current $ODDLOT_DATA."""
    data = os.environ.get("ODDLOT_DATA", "")
    if data not in POOLS:
        POOLS[data] = ProcessPoolExecutor(None, CONTEXT, initializer=_begin, initargs=(dict(os.environ), 1))
    return POOLS[data]


def in_new_process(run: Callable[[], Found]) -> Found:
    """Call `run` in a new process."""
    with ProcessPoolExecutor(1, CONTEXT, initializer=_begin, initargs=(dict(os.environ), None)) as pool:
        return pool.submit(run).result()


def _begin(environment: Mapping[str, str], threads: int | None) -> None:
    """Set up a process. Without this, it would have the environment of the fork server's start."""
    die_with_parent(os.getppid())
    os.environ.update(environment)
    if threads:
        torch.set_num_threads(threads)
