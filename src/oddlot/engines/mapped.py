"""Sending of memory-mapped arrays to workers: by path if the file has the same numbers."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from oddlot.core.errors import JobError

SHARED = {"r": "r", "r+": "c", "w+": "c"}
"""Modes in which the array equals the file, and the mode in which a worker opens it, without writing."""


def travelling(array: "np.memmap[Any, Any]") -> tuple[Any, tuple[Any, ...]]:
    """Return how to pickle a memory-mapped array: by the path of its file, or as an ordinary array.

    A part of a file, and a private copy (mode `c`) that may have been changed, are pickled as ordinary arrays.
    """
    base: object = array.base
    order = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else None
    # The base of a whole map is the mmap; the base of a part is another array.
    whole = isinstance(base, mmap.mmap) and order is not None and array.mode in SHARED
    size = _size(array.filename) if whole and array.filename else None
    if size is None or size < array.offset + array.nbytes:
        return np.asarray, (np.asarray(array),)
    mode = SHARED[array.mode]
    return opened, (str(array.filename), size, array.dtype, mode, array.offset, array.shape, order)


def opened(
    path: str, size: int, dtype: Any, mode: str, offset: int, shape: tuple[int, ...], order: str
) -> "np.memmap[Any, Any]":
    """Map the array in a file of `size` bytes. Raise JobError if the file was removed or changed."""
    help_ = "Do not change memory-mapped files during a run"
    now = _size(path)
    if now != size:
        became = "it was removed" if now is None else f"it has {now:,} bytes instead of {size:,}"
        told = f"{path} has changed: {became}. The job's data are memory-mapped from it. {help_}"
        raise JobError(told, "data_file_changed", path=path, bytes=now, expected=size)
    try:
        return np.memmap(path, dtype, mode, offset, shape, order)  # type: ignore[call-overload, no-any-return]  # of any order
    except (OSError, ValueError) as error:
        told = f"{path}, from which the job's data are memory-mapped, cannot be read: {error}. {help_}"
        raise JobError(told, "unreadable_file", path=path, reason=str(error)) from None


def _size(path: str | Path) -> int | None:
    """Return the size of a file; None if it does not exist."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return None
