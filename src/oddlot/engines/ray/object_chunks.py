"""Blocks of bytes in Ray's object store: written in pieces, read as one array without copying, and mapped for writing.

Ray copies an array above 1 MiB with six threads. Their start takes longer than the copy unless the array is large.
"""

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
PIECE_BYTES = 1 << 20
"""Largest array that Ray copies with one thread. A multiple of 64, to avoid gaps between pieces in the store."""
MAX_BYTES = 32 << 20
"""Largest block that is split. For larger blocks, several threads are faster."""


def pieces_of(block: Bytes) -> list[Bytes]:
    """Return views of a block, to be put into the object store."""
    if block.nbytes > MAX_BYTES:
        return [block]
    return [block[start : start + PIECE_BYTES] for start in range(0, block.nbytes, PIECE_BYTES)]


def joined(pieces: Sequence[Bytes]) -> Bytes:
    """Return the block of these pieces. It is a view if they are adjacent in memory, as in the object store."""
    first, sizes = pieces[0], [piece.nbytes for piece in pieces]
    at = first.ctypes.data
    for piece in pieces:
        if piece.ctypes.data != at:
            return np.concatenate(pieces)
        at += piece.nbytes
    # The first piece keeps the object in the store.
    return np.lib.stride_tricks.as_strided(first, (sum(sizes),), writeable=False)


MIN_MAPPED_BYTES = 1 << 20
"""Minimum size of arrays that are mapped instead of copied."""


def private(array: Bytes) -> Bytes:
    """Return a writable view that copies a page at the first write. The array must outlive the view.

    Small arrays are copied. So are all arrays if the raylet's memory cannot be mapped, as on systems other than Linux.
    """
    if array.nbytes >= MIN_MAPPED_BYTES:
        with suppress(OSError, ValueError):  # ValueError: the offset is not a multiple of a huge page
            return _mapped(array)
    return array.copy()


def _mapped(array: Bytes) -> Bytes:
    """Map the memory of an array again, copy-on-write. Raise OSError if that is impossible."""
    at = array.ctypes.data
    begin, offset, device, inode = _mapping(at)
    position = at - begin + offset
    start = position - position % mmap.ALLOCATIONGRANULARITY
    file = _open_shared(device, inode)
    try:
        memory = mmap.mmap(file, position - start + array.nbytes, access=mmap.ACCESS_COPY, offset=start)
    finally:
        os.close(file)
    return np.frombuffer(memory, np.uint8, array.nbytes, position - start)


def _mapping(address: int) -> tuple[int, int, int, int]:
    """Return the start address, file offset, device and inode of the mapping that contains an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, device, inode = line.split()[:5]
        begin, end = (int(number, 16) for number in span.split("-"))
        if begin <= address < end:
            major, minor = (int(number, 16) for number in device.split(":"))
            return begin, int(offset, 16), os.makedev(major, minor), int(inode)
    raise OSError("no mapping has this address")


def _open_shared(device: int, inode: int) -> int:
    """Open a file of shared memory that this process or its parent, the raylet, has open."""
    for process in ("self", os.getppid()):
        for link in Path(f"/proc/{process}/fd").iterdir():
            with suppress(OSError):  # closed in the meantime
                found = link.stat()
                if (found.st_dev, found.st_ino) == (device, inode):
                    return os.open(link, os.O_RDONLY)
    raise OSError("neither this process nor its parent has the file open")
