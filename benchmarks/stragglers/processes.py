"""Runs under a virtual clock, one on each core."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import torch

from oddlot.engines.forkserver import die_with_parent

Asked = TypeVar("Asked")
Found = TypeVar("Found")


def in_processes(run: Callable[[Asked], Found], asked: Sequence[Asked]) -> list[Found]:
    """What each asked run finds, on a core of its own: the runs are independent, and their clock is virtual."""
    processes = get_context("spawn")
    with ProcessPoolExecutor(None, processes, initializer=_begin, initargs=(os.getpid(),)) as pool:
        return list(pool.map(run, asked))


def _begin(parent: int) -> None:
    die_with_parent(parent)
    torch.set_num_threads(1)
