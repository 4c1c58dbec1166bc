"""Settings of the C library's memory allocator in workers."""

import ctypes
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of settings for `mallopt` of glibc."""
KEPT_BYTES = 1 << 30
"""Unused memory that a worker keeps."""
LARGEST_BYTES = 32 << 20
"""Size of blocks that are kept, glibc's maximum."""


def keep_memory() -> None:
    """Keep freed memory for the next step, on Linux with glibc.

    Otherwise each step may return the memory of its activations to the system and get it back page by page, which takes
    10 % of a step of a small network.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, LARGEST_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
