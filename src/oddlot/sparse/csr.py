"""Sparse matrices in CSR format."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Csr:
    """A CSR matrix with the arrays of scipy.sparse.csr_array: row i has the entries `indptr[i]:indptr[i + 1]`."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]
    shape: tuple[int, int]

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, which: Any) -> "Csr":
        """Return the rows with these indices, in this order."""
        counts = np.diff(self.indptr)[which]
        starts = self.indptr[:-1][which]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        at = np.repeat(starts - indptr[:-1], counts) + np.arange(indptr[-1])
        return Csr(indptr, self.indices[at], self.data[at], (len(counts), self.shape[1]))

    def between(self, low: int, high: int) -> "Csr":
        """Return the rows from `low` to before `high`, as views."""
        high = min(high, len(self))
        indptr = self.indptr[low : high + 1]
        first, last = indptr[0], indptr[-1]
        shape = high - low, self.shape[1]
        return Csr(indptr - first, self.indices[first:last], self.data[first:last], shape)

    def unit_rows(self) -> "Csr":
        """Return the rows scaled to an L2 norm of 1; rows of zeros stay as they are. Only `data` is copied."""
        counts, norms = np.diff(self.indptr), np.ones(len(self))
        if (filled := np.flatnonzero(counts)).size:
            # In float64, squares of float32 numbers neither overflow nor underflow.
            squares = np.square(self.data, dtype=np.float64)
            norms[filled] = np.sqrt(np.add.reduceat(squares, self.indptr[filled]))
            norms[norms == 0] = 1.0
        return replace(self, data=(self.data / np.repeat(norms, counts)).astype(np.float32))

    def distinct(self) -> "Csr":
        """Return the matrix without repeated columns in a row. The first of repeated entries is kept."""
        own_row = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        _, first = np.unique(own_row * self.shape[1] + self.indices, return_index=True)
        if len(first) == len(self.indices):
            return self
        there = np.zeros(len(self.indices), np.bool_)
        there[first] = True
        starts = np.concatenate([[0], np.cumsum(there)])[self.indptr]
        return Csr(starts, self.indices[there], self.data[there], self.shape)
