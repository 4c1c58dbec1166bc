"""Matrices and labels as users have them, as arrays of one's own types."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.xmc.csr import Csr


def checked(matrix: Any, name: str) -> Csr:
    """The matrix as arrays of one's own types. ValueError: it is no CSR matrix, or has values that are no numbers."""
    if getattr(matrix, "format", "csr") != "csr":
        raise ValueError(f"{name} is a matrix in the form {matrix.format}: its .tocsr() is one of rows")
    try:
        indptr, indices, data = np.asarray(matrix.indptr), np.asarray(matrix.indices), np.asarray(matrix.data)
        shape = tuple(matrix.shape)
    except AttributeError:
        raise ValueError(f"{name} is no CSR matrix: scipy.sparse.csr_matrix(...) makes one") from None
    indptr = indptr.astype(np.int64)  # differences of unsigned numbers are never negative
    used = indices[: indptr[-1]] if len(indptr) else indices
    if len(used) and not 0 <= int(used.min()) <= int(used.max()) < shape[1]:
        raise ValueError(f"{name} has a column that is not among its {shape[1]:,}")
    found = Csr(
        indptr,
        indices[: indptr[-1]].astype(np.int32) if len(indptr) else indices.astype(np.int32),
        data[: indptr[-1]].astype(np.float32) if len(indptr) else data.astype(np.float32),
        (int(shape[0]), int(shape[1])),
    )
    if (
        len(indptr) != len(found) + 1
        or indptr[0] != 0
        or (np.diff(indptr) < 0).any()
        or indptr[-1] > min(len(indices), len(data))
    ):
        raise ValueError(f"{name} is no CSR matrix: its row pointers do not rise from 0 to its values")
    if not np.isfinite(found.data).all():
        row = int(np.searchsorted(indptr, np.flatnonzero(~np.isfinite(found.data))[0], "right")) - 1
        raise ValueError(f"{name} has a value in row {row} that is not finite")
    return found


def checked_labels(y: Any, examples: int, labels: int | None = None) -> Csr:
    """Labels as a matrix. ValueError: there are not as many as examples, or one is not among the `labels` known."""
    found = _not_zero(checked(y, "y")) if hasattr(y, "indptr") else _of_array(np.asarray(y), labels)
    if len(found) != examples:
        raise ValueError(f"X has {examples:,} examples, y {len(found):,}")
    if labels is not None and found.shape[1] != labels:
        raise ValueError(f"y has {found.shape[1]:,} labels, there are {labels:,}")
    return found


def _not_zero(matrix: Csr) -> Csr:
    """Without the places where a zero is stored."""
    there = matrix.data != 0
    if there.all():
        return matrix
    starts = np.concatenate([[0], np.cumsum(there)])[matrix.indptr]
    return Csr(starts, matrix.indices[there], matrix.data[there], matrix.shape)


def _of_array(y: NDArray[Any], labels: int | None) -> Csr:
    """From one label each, or from which ones there are: [examples, labels], of zeros and ones."""
    if y.ndim == 2 and y.dtype.kind in "biuf" and ((y == 0) | (y == 1)).all():
        rows, columns = np.nonzero(y)
        starts = np.searchsorted(rows, np.arange(len(y) + 1))
        return Csr(starts, columns.astype(np.int32), np.ones(len(rows), np.float32), y.shape)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise ValueError(
            "y is neither a CSR matrix nor a 1-D array of whole numbers, nor a 2-D one of zeros and ones"
        )
    if len(y) and y.min() < 0:
        raise ValueError(f"y has a label {y.min()}: labels are counted from 0")
    count = labels or int(y.max(initial=0)) + 1
    if len(y) and y.max() >= count:
        raise ValueError(f"y has the label {y.max()}, there are {count:,}")
    return Csr(np.arange(len(y) + 1), y.astype(np.int32), np.ones(len(y), np.float32), (len(y), count))
