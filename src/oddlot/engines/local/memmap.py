"""Memory-mapped arrays on their way to workers: by the path of their file where that holds the same numbers."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from oddlot.core.errors import JobError

SHARED = {"r": "r", "r+": "c", "w+": "c"}
"""the modes in which the array is what the file holds, and how a worker then opens it: it never writes there"""


def travelling(array: "np.memmap[Any, Any]") -> tuple[Any, tuple[Any, ...]]:
    """What pickle is to make a memory-mapped array of: its whole file's path, or an ordinary array.

    A part of one, and a private copy (mode `c`) that may have been changed, travel as their numbers.
    """
    base: object = array.base
    order = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else None
    # What numpy has mapped itself lies in the map; a part of that lies in the array that it was taken from.
    whole = isinstance(base, mmap.mmap) and order is not None and array.mode in SHARED
    size = _size(array.filename) if whole and array.filename else None
    if size is None or size < array.offset + array.nbytes:
        return np.asarray, (np.asarray(array),)
    mode = SHARED[array.mode]
    return opened, (str(array.filename), size, array.dtype, mode, array.offset, array.shape, order)


def opened(
    path: str, size: int, dtype: Any, mode: str, offset: int, shape: tuple[int, ...], order: str
) -> "np.memmap[Any, Any]":
    """The array in a file of `size` bytes. JobError: the file is not there any more, or another one."""
    help_ = "leave the files that a job's data are mapped from as they are until the run has ended"
    now = _size(path)
    if now != size:
        became = "it is gone" if now is None else f"it has {now:,} bytes, not {size:,} any more"
        told = f"{path}, from which the job's data are memory-mapped, has changed: {became}; {help_}"
        raise JobError(told, "data_file_changed", path=path, bytes=now, expected=size)
    try:
        return np.memmap(path, dtype, mode, offset, shape, order)  # type: ignore[call-overload, no-any-return]  # of any order
    except (OSError, ValueError) as error:
        told = f"{path}, from which the job's data are memory-mapped: {error}; {help_}"
        raise JobError(told, "unreadable_file", path=path, reason=str(error)) from None


def _size(path: str | Path) -> int | None:
    """None: there is no such file."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return None
