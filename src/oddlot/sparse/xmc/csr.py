"""Rows of few numbers each."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Csr:
    """Row i has `data[indptr[i]:indptr[i + 1]]` in the columns `indices[...]`: the arrays of scipy.sparse.csr_array."""

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    data: NDArray[np.float32]
    shape: tuple[int, int]

    def __len__(self) -> int:
        return self.shape[0]

    def rows(self, which: Any) -> "Csr":
        """Those rows, in that order."""
        counts = np.diff(self.indptr)[which]
        starts = self.indptr[:-1][which]
        indptr = np.concatenate([[0], np.cumsum(counts)])
        at = np.repeat(starts - indptr[:-1], counts) + np.arange(indptr[-1])
        return Csr(indptr, self.indices[at], self.data[at], (len(counts), self.shape[1]))
