"""Shared memory in anonymous files: an arena of blocks of equal size, and parcels with pickled values.

A file has no name and is freed with the last process that maps it. A block uses memory only after it was written.
"""

import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oddlot.core.support.errors import JobError
from oddlot.engines.local.orphans import MEMORY_NAME
from oddlot.engines.processes.object_parcel import pickled, unpickled


def anonymous_file(size: int) -> int:
    """Return the descriptor of an anonymous file of `size` zero bytes, in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(MEMORY_NAME, os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, max(size, 1))
    except OSError as error:
        os.close(fd)
        message = f"cannot allocate {size / 1e6:,.0f} MB of shared memory: {error.strerror}"
        raise JobError(message, "no_shared_memory", bytes=size, reason=error.strerror) from None
    return fd


class Arena:
    """Shared memory with `blocks` blocks of `block_bytes` bytes each. Other processes attach it by the descriptor `fd`.

    `marks`, uint8 [blocks], has a flag for each block, initially 0.
    """

    def __init__(self, blocks: int, block_bytes: int, fd: int | None = None) -> None:
        self.blocks = blocks
        self.block_bytes = -(-block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        size = blocks * self.block_bytes
        self.fd = anonymous_file(size + blocks) if fd is None else fd
        self.close = weakref.finalize(self, os.close, self.fd)
        """Closes the descriptor. The memory remains while a block is in use."""
        self._map = mmap.mmap(self.fd, size + blocks)
        self.marks = np.frombuffer(self._map, np.uint8, blocks, offset=size)

    def block(self, index: int) -> Tensor:
        """Return a view of a block as uint8 [block_bytes], with shared memory."""
        return torch.frombuffer(
            self._map, dtype=torch.uint8, count=self.block_bytes, offset=index * self.block_bytes
        )


def pack_parcel(value: Any) -> int:
    """Pickle a value into an anonymous file. Return the file's descriptor, for `open_parcel`.

    Raise UsageError if the value cannot be pickled.
    """
    parts = pickled(value)
    sizes = np.array([len(parts), *(len(part) for part in parts)], dtype=np.int64)
    fd = anonymous_file(0)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(sizes.tobytes())
        for part in parts:
            file.seek(-(-file.tell() // 64) * 64)
            file.write(part)
    return fd


def open_parcel(fd: int) -> Any:
    """Return the value of a parcel. All processes share the memory of its arrays until they write to them."""
    memory = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY))
    count = int(np.frombuffer(memory[:8], np.int64)[0])
    sizes = np.frombuffer(memory[8 : 8 * (count + 1)], np.int64).tolist()
    at, parts = 8 * (count + 1), []
    for size in sizes:
        at = -(-at // 64) * 64
        parts.append(memory[at : at + size])
        at += size
    return unpickled(parts)
