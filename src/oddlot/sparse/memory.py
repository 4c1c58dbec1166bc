"""Checks of the available memory, before an allocation that would kill the process."""

import os
from pathlib import Path

from oddlot.sparse.errors import coded

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container."""


def check_memory(bytes_needed: int, what: str) -> None:
    """Raise MemoryError if `what` needs more memory than this machine or container has."""
    has = min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits()])
    if bytes_needed > has:
        told = f"{what} needs {bytes_needed / 1e9:,.1f} GB, but this machine has {has / 1e9:,.1f} GB"
        raise coded(MemoryError(told), "not_enough_memory", what=what, needs=bytes_needed, has=has)


def bytes_held() -> int:
    """Return the resident memory of this process; 0 if unknown."""
    told = Path("/proc/self/statm")
    return int(told.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if told.is_file() else 0


def _limits() -> list[int]:
    texts = [path.read_text().strip() for name in LIMITS if (path := Path(name)).is_file()]
    return [int(text) for text in texts if text.isdigit()]
