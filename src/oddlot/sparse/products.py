"""Inner products of many vectors with the rows of a matrix, in 8 bits if the CPU has instructions for it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.kernels import rounding as kernels
from oddlot.sparse.threads import Crew

MAX_COLUMNS = int((1 << 31) / kernels.LARGEST**2)
"""Maximum number of columns, so sums of 8-bit products fit into 32 bits."""


def has_bytes() -> bool:
    """Return whether 8-bit products are several times as fast as float32: on x86 with AVX-512 VNNI."""
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # missing in older versions
    there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # PyTorch's
    return there and bool(known.get("avx512_vnni"))


class Product:
    """Inner products of vectors with the rows of a constant matrix.

    In 8 bits, the largest number of a row is 127 steps, and the error of a number is at most half a step.
    """

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
        """Yield products with the vectors, [vectors, rows], float32 or int32, and a scale for each vector, [vectors].

        A product, times the scale of its vector and the row's value in `scales`, is the inner product.
        """
        room = self._room(len(vectors))
        if self.in_bytes:
            whole, scales = rounded(Crew(1), vectors)  # for a batch, one thread is faster than waking others
            torch._int_mm(torch.from_numpy(whole), self.matrix.T, out=torch.from_numpy(room))
        else:
            scales = np.ones(len(vectors), np.float32)
            torch.mm(torch.from_numpy(vectors), self.matrix.T, out=torch.from_numpy(room))
        yield room, scales
        self.free.append(room)

    def _room(self, vectors: int) -> NDArray[Any]:
        shape, kind = (vectors, len(self.matrix)), np.int32 if self.in_bytes else np.float32
        try:
            room = self.free.pop()  # without a check before, because another thread may take the last array
        except IndexError:
            return np.empty(shape, kind)
        return room if room.shape == shape else np.empty(shape, kind)


def rounded(crew: Crew, rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the rows as int8, and the scale that restores each row approximately, [rows]."""
    whole, scales = np.empty(rows.shape, np.int8), np.empty(len(rows), np.float32)
    crew.share(kernels.round_rows, rows, whole, scales)
    return whole, scales
