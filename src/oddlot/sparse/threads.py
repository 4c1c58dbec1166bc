"""Threads that share the work of a kernel."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

EXAMPLES_EACH = 8
"""Smallest number of examples per thread, because waking a thread takes as long as some examples."""


class Crew:
    """A group of `parts` threads, by default PyTorch's number of threads. The caller is one of them."""

    def __init__(self, parts: int | None = None) -> None:
        self.parts = parts or torch.get_num_threads()

    @classmethod
    def of(cls, examples: int) -> "Crew":
        """Return a crew for this number of examples, with PyTorch's number of threads, or fewer for few examples."""
        return cls(min(torch.get_num_threads(), max(1, examples // EXAMPLES_EACH)))

    def share(self, kernel: Callable[..., None], *arguments: Any) -> None:
        """Call `kernel(part, parts, *arguments)` for each part in parallel."""
        others = [_pool().submit(kernel, part, self.parts, *arguments) for part in range(1, self.parts)]
        try:
            kernel(0, self.parts, *arguments)
        finally:
            for other in others:
                other.exception()  # waits: no thread may still write after an exception
        for other in others:
            other.result()


_pools: dict[int, ThreadPoolExecutor] = {}
"""Thread pools by process, because a forked process does not have its parent's threads."""


def _pool() -> ThreadPoolExecutor:
    if os.getpid() not in _pools:
        _pools.clear()
        _pools[os.getpid()] = ThreadPoolExecutor(
            max_workers=os.cpu_count(), thread_name_prefix="oddlot-sparse"
        )
    return _pools[os.getpid()]
