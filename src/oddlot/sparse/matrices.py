"""Conversion of users' matrices and labels."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.csr import Csr
from oddlot.sparse.errors import coded
from oddlot.sparse.validation import MOST

WAY_OUT = "set labels= to the largest possible number before the first training"


def checked(matrix: Any, name: str) -> Csr:
    """Return a user's matrix as CSR.

    Raise ValueError unless it is a valid CSR matrix or a 2-D array of finite numbers.
    """
    if isinstance(matrix, np.ndarray) and matrix.ndim == 2:
        return checked(_of_dense(np.asarray(matrix)), name)
    indptr, indices, data, shape = _parts(matrix, name)
    count = indptr[-1] if len(indptr) else 0
    rises = len(indptr) == shape[0] + 1 and indptr[0] == 0 and (np.diff(indptr) >= 0).all()
    if not rises or count > min(len(indices), len(data)):
        error = ValueError(
            f"{name} is not a valid CSR matrix: its row pointers do not ascend from 0 to its size"
        )
        raise coded(error, "invalid_row_pointers", name=name)
    used = indices[:count]
    if len(used) and not 0 <= int(used.min()) <= int(used.max()) < shape[1]:
        first = np.flatnonzero((used < 0) | (used >= shape[1]))[0]
        given, row = int(used[first]), _row(indptr, first)
        message = f"{name} has column {given} in row {row}, but only {shape[1]:,} columns"
        raise coded(ValueError(message), "out_of_range", name=name, given=given, row=row, size=shape[1])
    with np.errstate(over="ignore"):
        values = data[:count].astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        first = np.flatnonzero(~np.isfinite(values))[0]
        given, row = data[first], _row(indptr, first)
        message = f"{name} has a value in row {row} that is not finite in float32: {given}"
        raise coded(ValueError(message), "not_finite", name=name, row=row, given=float(given))
    return Csr(indptr, used.astype(np.int32, copy=False), values, shape)


def _parts(matrix: Any, name: str) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any], tuple[int, int]]:
    """Return the row pointers, columns, values and shape of a CSR matrix."""
    if isinstance(matrix, np.ndarray):
        error = ValueError(f"{name} must have two dimensions, but has the shape {matrix.shape}")
        raise coded(error, "wrong_shape", name=name, shape=matrix.shape)
    form = getattr(matrix, "format", "csr")
    if isinstance(form, str) and form != "csr":
        error = ValueError(f"{name} is a sparse matrix in the format {form}: use its .tocsr()")
        raise coded(error, "other_matrix_format", name=name, format=form)
    try:
        indptr, indices, data = np.asarray(matrix.indptr), np.asarray(matrix.indices), np.asarray(matrix.data)
        rows, columns = matrix.shape
        shape = int(rows), int(columns)
    except (AttributeError, TypeError, ValueError):
        kind = type(matrix).__name__
        message = (
            f"{name} must be a CSR matrix such as scipy.sparse.csr_matrix(...), or a 2-D array, not {kind}"
        )
        raise coded(ValueError(message), "not_a_matrix", name=name, given=kind) from None
    _check_kinds(name, indptr, indices, data)
    # differences of unsigned integers are never negative
    return indptr.astype(np.int64, copy=False), indices, data, shape


def _check_kinds(name: str, indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any]) -> None:
    """Raise ValueError unless they have the dtypes and dimensions of a CSR matrix."""
    if data.dtype.kind not in "biuf":
        error = ValueError(f"{name} must have real numbers, not values of dtype {data.dtype}")
        raise coded(error, "wrong_dtype", name=name, dtype=str(data.dtype))
    whole = all(part.dtype.kind in "iu" or not part.size for part in (indptr, indices))
    if not whole or not indptr.ndim == indices.ndim == data.ndim == 1:
        message = f"{name} is not a valid CSR matrix: indptr and indices must be 1-D arrays of integers, and data 1-D"
        raise coded(ValueError(message), "not_1d_integers", name=name)


def _row(indptr: NDArray[np.int64], place: np.intp) -> int:
    """Return the row of the value at a position."""
    return int(np.searchsorted(indptr, place, "right")) - 1


def _of_dense(matrix: NDArray[Any]) -> Csr:
    """Return an array as a CSR matrix."""
    rows, columns = np.nonzero(matrix)
    starts = np.searchsorted(rows, np.arange(len(matrix) + 1))
    return Csr(starts, columns.astype(np.int32), matrix[rows, columns], matrix.shape)


def checked_labels(y: Any, examples: int, labels: int | None = None) -> Csr:
    """Return a user's labels as a CSR matrix.

    Raise ValueError for a wrong number of examples, or for another number of labels than `labels`.
    """
    sparse = hasattr(y, "indptr") or hasattr(y, "tocsr")
    found = _positive(checked(y, "y")) if sparse else _of_array(_array(y), labels)
    if len(found) != examples:
        error = ValueError(f"X has {examples:,} examples, but y has {len(found):,}")
        raise coded(error, "different_lengths", name="y", given=len(found), expected=examples)
    if labels is not None and (given := found.shape[1]) != labels:
        error = ValueError(f"y has {given:,} labels, but the classifier has {labels:,}: {WAY_OUT}")
        raise coded(error, "wrong_column_count", name="y", given=given, expected=labels)
    return found


def _positive(matrix: Csr) -> Csr:
    """Remove stored zeros. Raise ValueError if a value is negative, such as -1 for "no label"."""
    if (negative := np.flatnonzero(matrix.data < 0)).size:
        given, row = float(matrix.data[negative[0]]), _row(matrix.indptr, negative[0])
        message = (
            f"y has {given:g} in row {row}: use a positive number for each label, and 0 or nothing for others"
        )
        raise coded(ValueError(message), "negative_label", name="y", row=row, given=given)
    there = matrix.data != 0
    if there.all():
        return matrix
    starts = np.concatenate([[0], np.cumsum(there)])[matrix.indptr]
    return Csr(starts, matrix.indices[there], matrix.data[there], matrix.shape)


def _array(y: Any) -> NDArray[Any]:
    try:
        return np.asarray(y)
    except (TypeError, RuntimeError) as error:  # a tensor that is sparse, or requires a gradient
        message = f"y must be an array of numbers: {error}"
        raise coded(ValueError(message), "not_an_array", name="y", reason=str(error)) from None
    except ValueError:
        message = "y has rows of different lengths: use a CSR matrix, [examples, labels]"
        raise coded(ValueError(message), "ragged_rows", name="y") from None


def _of_array(y: NDArray[Any], labels: int | None) -> Csr:
    """Convert an array with one label per example, or an array of zeros and ones, [examples, labels]."""
    if y.ndim == 2 and y.shape[1] == 1:
        error = ValueError(f"y has the shape {y.shape}: use y.ravel() for one label each")
        raise coded(error, "column_vector", name="y", shape=y.shape)
    if y.ndim == 2 and y.dtype.kind in "biuf" and ((y == 0) | (y == 1)).all():
        return _of_dense(y.astype(np.float32))
    if y.ndim != 1 or y.dtype.kind not in "iu":
        expected = "a CSR matrix, a 1-D array of whole numbers, or zeros and ones, [examples, labels]"
        error = ValueError(f"y must be {expected}, not an array {y.shape} of {y.dtype}")
        raise coded(error, "not_labels", name="y", shape=y.shape, dtype=str(y.dtype))
    least, most = (int(y.min()), int(y.max())) if len(y) else (0, -1)
    count = labels or most + 1
    if least < 0:
        raise _out_of_range(least, count, f"label {least}, but labels start at 0")
    if count > MOST:
        raise _out_of_range(most, MOST, f"label {most}, but at most {MOST:,} labels are supported")
    if most >= count:
        raise _out_of_range(most, count, f"label {most}, but the classifier has {count:,} labels: {WAY_OUT}")
    return Csr(np.arange(len(y) + 1), y.astype(np.int32), np.ones(len(y), np.float32), (len(y), count))


def _out_of_range(given: int, size: int, message: str) -> ValueError:
    return coded(ValueError(f"y has {message}"), "out_of_range", name="y", given=given, size=size)
