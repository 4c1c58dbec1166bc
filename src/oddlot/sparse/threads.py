"""Threads that share a kernel's work: each does a part, and all wait for each other."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

EXAMPLES_EACH = 8
"""of a thread at least, where examples are shared out: waking one takes as long as some examples do"""


class Crew:
    """As many threads as PyTorch has now, or so many parts; the caller is one of them."""

    def __init__(self, parts: int | None = None) -> None:
        self.parts = parts or torch.get_num_threads()

    @classmethod
    def of(cls, examples: int) -> "Crew":
        """As many threads as PyTorch has, but no more than are worth being woken for so many examples."""
        return cls(min(torch.get_num_threads(), max(1, examples // EXAMPLES_EACH)))

    def share(self, kernel: Callable[..., None], *arguments: Any) -> None:
        """Call `kernel(part, parts, *arguments)` for each part, at once."""
        others = [_pool().submit(kernel, part, self.parts, *arguments) for part in range(1, self.parts)]
        try:
            kernel(0, self.parts, *arguments)
        finally:
            for other in others:
                other.exception()  # which waits: whatever one of them raises, none still writes
        for other in others:
            other.result()


_pools: dict[int, ThreadPoolExecutor] = {}
"""by process: a forked one has none of its parent's threads"""


def _pool() -> ThreadPoolExecutor:
    if os.getpid() not in _pools:
        _pools.clear()
        _pools[os.getpid()] = ThreadPoolExecutor(
            max_workers=os.cpu_count(), thread_name_prefix="oddlot-sparse"
        )
    return _pools[os.getpid()]
