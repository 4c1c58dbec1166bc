"""Call functions in two processes of one thread each, since small steps gain nothing from a second thread."""

import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

import torch

PROCESSES = 2
Result = TypeVar("Result")


def spread(function: Callable[..., Result], arguments: Iterable[tuple[Any, ...]]) -> list[Result]:
    """Return the result of `function` for each tuple of arguments, in their order."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, context, torch.set_num_threads, (1,)) as pool:
        return list(pool.map(function, *zip(*arguments, strict=True)))
