"""Processes of benchmarks: forked from a server that has imported PyTorch, so that each begins in milliseconds."""

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
"""What processes need. DistributedDataParallel imports torch._dynamo, which takes as long as PyTorch itself."""
Asked = TypeVar("Asked")
Found = TypeVar("Found")


def in_processes(run: Callable[[Asked], Found], asked: Sequence[Asked]) -> list[Found]:
    """Run each of `asked` in a process with one thread, as many at once as there are cores: for a virtual clock."""
    return list(pool().map(run, asked))


POOLS: dict[str, ProcessPoolExecutor] = {}
"""The program's pools, by $ODDLOT_DATA, which their processes have: what one run imports is there for the next one."""


def pool() -> ProcessPoolExecutor:
    """Return the program's pool for the present data."""
    data = os.environ.get("ODDLOT_DATA", "")
    if data not in POOLS:
        POOLS[data] = ProcessPoolExecutor(None, CONTEXT, initializer=_begin, initargs=(dict(os.environ), 1))
    return POOLS[data]


def in_new_process(run: Callable[[], Found]) -> Found:
    """Run it in a process of its own."""
    with ProcessPoolExecutor(1, CONTEXT, initializer=_begin, initargs=(dict(os.environ), None)) as pool:
        return pool.submit(run).result()


def _begin(environment: Mapping[str, str], threads: int | None) -> None:
    """The server has the environment that was there when it started."""
    die_with_parent(os.getppid())
    os.environ.update(environment)
    if threads:
        torch.set_num_threads(threads)
