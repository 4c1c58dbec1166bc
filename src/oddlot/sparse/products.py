"""Products of many vectors with a matrix, in 8 bits where the processor has instructions for it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.kernels import rounding as kernels
from oddlot.sparse.threads import Crew

MAX_COLUMNS = int((1 << 31) / kernels.LARGEST**2)
"""of 8 bits, so that a sum of products has its place in 32"""


def has_bytes() -> bool:
    """Whether products in 8 bits are several times as fast as those of float32: on x86, with AVX-512 VNNI."""
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # which older ones do not have
    there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # PyTorch's
    return there and bool(known.get("avx512_vnni"))


class Product:
    """Vectors times the rows of a matrix, which does not change; in 8 bits each number is half a step off at most, of
    127 for the largest one of its row."""

    def __init__(self, crew: Crew, matrix: NDArray[np.float32]) -> None:
        self.free = list[NDArray[Any]]()
        """Free buffers for the products of a batch. A thread takes one while it uses it."""
        self.matrix, self.scales = torch.from_numpy(matrix), np.ones(len(matrix), np.float32)
        self.in_bytes = matrix.shape[1] <= MAX_COLUMNS and has_bytes()
        if self.in_bytes:
            whole, self.scales = rounded(crew, matrix)
            self.matrix = torch.from_numpy(whole)

    @contextmanager
    def of(self, vectors: NDArray[np.float32]) -> Iterator[tuple[NDArray[Any], NDArray[np.float32]]]:
        """Of each vector and row a number, [vectors, rows], float32 or int32, and one of each vector: their product
        with the row's of `scales` is that of the vector and the row."""
        room = self._room(len(vectors))
        if self.in_bytes:
            whole, scales = rounded(Crew(1), vectors)  # a batch's are done sooner than another thread begins
            torch._int_mm(torch.from_numpy(whole), self.matrix.T, out=torch.from_numpy(room))
        else:
            scales = np.ones(len(vectors), np.float32)
            torch.mm(torch.from_numpy(vectors), self.matrix.T, out=torch.from_numpy(room))
        yield room, scales
        self.free.append(room)

    def _room(self, vectors: int) -> NDArray[Any]:
        shape, kind = (vectors, len(self.matrix)), np.int32 if self.in_bytes else np.float32
        try:
            room = self.free.pop()  # and no look before: another thread may take the last one in between
        except IndexError:
            return np.empty(shape, kind)
        return room if room.shape == shape else np.empty(shape, kind)


def rounded(crew: Crew, rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows as whole numbers of 8 bits, and by what each is multiplied to be itself, about."""
    whole, scales = np.empty(rows.shape, np.int8), np.empty(len(rows), np.float32)
    crew.share(kernels.round_rows, rows, whole, scales)
    return whole, scales
