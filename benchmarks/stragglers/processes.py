"""Runs under a virtual clock, one on each core."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import torch

Asked = TypeVar("Asked")
Found = TypeVar("Found")


def in_processes(run: Callable[[Asked], Found], asked: Sequence[Asked]) -> list[Found]:
    """What each asked run finds, on a core of its own: the runs are independent, and their clock is virtual."""
    processes = get_context("spawn")
    with ProcessPoolExecutor(None, processes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(run, asked))
