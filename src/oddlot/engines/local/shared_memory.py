"""Shared memory that belongs to the hub: equal blocks in one anonymous file, nothing to leak.

The file has no name and is freed with the last process that maps it. A block takes memory only once it is written.
"""

import io
import mmap
import os
import sys
import tempfile
import weakref
from collections import ChainMap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from oddlot.core.errors import JobError, UsageError
from oddlot.engines.local.memmap import travelling
from oddlot.engines.local.orphans import MEMORY_NAME


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
        told = f"cannot allocate {size / 1e6:,.0f} MB of shared memory: {error.strerror}"
        raise JobError(told, "no_shared_memory", bytes=size, reason=error.strerror) from None
    return fd


class Arena:
    """`blocks` blocks of `block_bytes` bytes each, seen by every process that attaches the descriptor `fd`.

    `marks` is uint8 [blocks], zero at first: a word about each block without a message.
    """

    def __init__(self, blocks: int, block_bytes: int, fd: int | None = None) -> None:
        self.blocks = blocks
        self.block_bytes = -(-block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        size = blocks * self.block_bytes
        self.fd = anonymous_file(size + blocks) if fd is None else fd
        self.close = weakref.finalize(self, os.close, self.fd)
        """Closes the descriptor. The memory stays while a block is in use."""
        self._map = mmap.mmap(self.fd, size + blocks)
        self.marks = np.frombuffer(self._map, np.uint8, blocks, offset=size)

    def block(self, index: int) -> Tensor:
        """Block number `index` as uint8 [block_bytes], sharing its memory."""
        return torch.frombuffer(
            self._map, dtype=torch.uint8, count=self.block_bytes, offset=index * self.block_bytes
        )


def _shared(tensor: Tensor) -> tuple[Any, tuple[Any, ...]]:
    """Return how to pickle a tensor: CPU tensors as arrays, whose memory workers share."""
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized
    if not plain or tensor.nbytes > tensor.untyped_storage().nbytes():  # after expand() it may be very large
        reduced: tuple[Any, tuple[Any, ...]] = tensor.__reduce_ex__(2)  # type: ignore[no-untyped-call]  # PyTorch's
        return reduced
    numbers = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return _tensor, (numbers.numpy(), tensor.dtype, tensor.shape, tensor.requires_grad)


def _tensor(array: Any, dtype: torch.dtype, shape: torch.Size, requires_grad: bool) -> Tensor:
    """Return the tensor that `_shared` pickled."""
    numbers = torch.from_numpy(array).view(dtype).view(shape)
    return numbers.requires_grad_(requires_grad)


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
    """A cloudpickle pickler that shares tensors and memory-mapped arrays instead of copying them into each worker."""

    dispatch_table: ClassVar = ChainMap(
        {np.memmap: travelling, Tensor: _shared}, *cloudpickle.Pickler.dispatch_table.maps
    )


@contextmanager
def _script_by_value() -> Iterator[None]:
    """Have cloudpickle take `__mp_main__` as it takes `__main__`: that is the script in a child that was spawned."""
    script = sys.modules.get("__mp_main__")
    if script is None or script.__name__ in cloudpickle.list_registry_pickle_by_value():
        yield
        return
    cloudpickle.register_pickle_by_value(script)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(script)


def pack_parcel(value: Any) -> int:
    """Return the descriptor of an anonymous file with a pickled value, which workers open. Large arrays are next to the
    pickle.

    Functions and classes of a script or notebook are sent by value, so neither needs a `__main__` guard. An array that
    is mapped from a file is sent as the file's path, and workers map it too.
    Raise UsageError if the value cannot be pickled.
    """
    buffers: list[Any] = []
    try:
        with _script_by_value():
            _Packer(pickled := io.BytesIO(), protocol=5, buffer_callback=buffers.append).dump(value)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        told = f"the job cannot be sent to workers ({reason}): have its functions open files, locks and "
        raise UsageError(f"{told}connections themselves", "cannot_be_pickled", reason=reason) from error
    parts = [pickled.getbuffer(), *(buffer.raw() for buffer in buffers)]
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
    return cloudpickle.loads(parts[0], buffers=parts[1:])
