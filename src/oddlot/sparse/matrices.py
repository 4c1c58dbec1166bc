"""Matrices and labels as users have them, as arrays of one's own types."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.csr import Csr
from oddlot.sparse.errors import coded
from oddlot.sparse.validation import MOST

WAY_OUT = "set labels= to how many there can be, before the first training"


def checked(matrix: Any, name: str) -> Csr:
    """The matrix as arrays of one's own types. ValueError: it is neither a CSR matrix nor a 2-D array, or has values
    that are no numbers."""
    if isinstance(matrix, np.ndarray) and matrix.ndim == 2:
        return checked(_of_dense(np.asarray(matrix)), name)
    indptr, indices, data, shape = _parts(matrix, name)
    count = indptr[-1] if len(indptr) else 0
    rises = len(indptr) == shape[0] + 1 and indptr[0] == 0 and (np.diff(indptr) >= 0).all()
    if not rises or count > min(len(indices), len(data)):
        error = ValueError(f"{name} is no CSR matrix: its row pointers do not rise from 0 to its values")
        raise coded(error, "invalid_row_pointers", name=name)
    used = indices[:count]
    if len(used) and not 0 <= int(used.min()) <= int(used.max()) < shape[1]:
        first = np.flatnonzero((used < 0) | (used >= shape[1]))[0]
        given, row = int(used[first]), _row(indptr, first)
        told = f"{name} has a column {given} in row {row} that is not among its {shape[1]:,}"
        raise coded(ValueError(told), "out_of_range", name=name, given=given, row=row, size=shape[1])
    with np.errstate(over="ignore"):
        values = data[:count].astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        first = np.flatnonzero(~np.isfinite(values))[0]
        given, row = data[first], _row(indptr, first)
        told = f"{name} has a value in row {row} that is not finite in float32: {given}"
        raise coded(ValueError(told), "not_finite", name=name, row=row, given=float(given))
    return Csr(indptr, used.astype(np.int32, copy=False), values, shape)


def _parts(matrix: Any, name: str) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any], tuple[int, int]]:
    """Row pointers, columns, values and shape, of the kinds that these have in a CSR matrix."""
    if isinstance(matrix, np.ndarray):
        error = ValueError(f"{name} is an array {matrix.shape}: one of two dimensions is expected")
        raise coded(error, "wrong_shape", name=name, shape=matrix.shape)
    form = getattr(matrix, "format", "csr")
    if isinstance(form, str) and form != "csr":
        error = ValueError(f"{name} is a matrix in the form {form}: its .tocsr() is one of rows")
        raise coded(error, "other_matrix_format", name=name, format=form)
    try:
        indptr, indices, data = np.asarray(matrix.indptr), np.asarray(matrix.indices), np.asarray(matrix.data)
        rows, columns = matrix.shape
        shape = int(rows), int(columns)
    except (AttributeError, TypeError, ValueError):
        kind = type(matrix).__name__
        told = f"{name} is {kind}, no CSR matrix: scipy.sparse.csr_matrix(...) makes one, of a 2-D array too"
        raise coded(ValueError(told), "not_a_matrix", name=name, given=kind) from None
    _check_kinds(name, indptr, indices, data)
    # differences of unsigned numbers are never negative
    return indptr.astype(np.int64, copy=False), indices, data, shape


def _check_kinds(name: str, indptr: NDArray[Any], indices: NDArray[Any], data: NDArray[Any]) -> None:
    """ValueError: they are not of the kinds that they have in a CSR matrix."""
    if data.dtype.kind not in "biuf":
        error = ValueError(f"{name} has values of dtype {data.dtype}: real numbers are expected")
        raise coded(error, "wrong_dtype", name=name, dtype=str(data.dtype))
    whole = all(part.dtype.kind in "iu" or not part.size for part in (indptr, indices))
    if not whole or not indptr.ndim == indices.ndim == data.ndim == 1:
        told = f"{name} is no CSR matrix: indptr and indices are 1-D arrays of whole numbers, data is 1-D"
        raise coded(ValueError(told), "not_1d_integers", name=name)


def _row(indptr: NDArray[np.int64], place: np.intp) -> int:
    """Whose value it is."""
    return int(np.searchsorted(indptr, place, "right")) - 1


def _of_dense(matrix: NDArray[Any]) -> Csr:
    """The places of an array that are not zero."""
    rows, columns = np.nonzero(matrix)
    starts = np.searchsorted(rows, np.arange(len(matrix) + 1))
    return Csr(starts, columns.astype(np.int32), matrix[rows, columns], matrix.shape)


def checked_labels(y: Any, examples: int, labels: int | None = None) -> Csr:
    """Labels as a matrix. ValueError: there are not as many as examples, or one is not among the `labels` known."""
    sparse = hasattr(y, "indptr") or hasattr(y, "tocsr")
    found = _positive(checked(y, "y")) if sparse else _of_array(_array(y), labels)
    if len(found) != examples:
        error = ValueError(f"X has {examples:,} examples, y {len(found):,}")
        raise coded(error, "different_lengths", name="y", given=len(found), expected=examples)
    if labels is not None and (given := found.shape[1]) != labels:
        error = ValueError(f"y has {given:,} labels, there are {labels:,}: {WAY_OUT}")
        raise coded(error, "wrong_column_count", name="y", given=given, expected=labels)
    return found


def _positive(matrix: Csr) -> Csr:
    """Without the places where a zero is stored. ValueError: a value is negative, as where -1 stands for no label."""
    if (negative := np.flatnonzero(matrix.data < 0)).size:
        given, row = float(matrix.data[negative[0]]), _row(matrix.indptr, negative[0])
        told = f"y has {given:g} in row {row}: store a positive number for each label, and nothing or 0 for the others"
        raise coded(ValueError(told), "negative_label", name="y", row=row, given=given)
    there = matrix.data != 0
    if there.all():
        return matrix
    starts = np.concatenate([[0], np.cumsum(there)])[matrix.indptr]
    return Csr(starts, matrix.indices[there], matrix.data[there], matrix.shape)


def _array(y: Any) -> NDArray[Any]:
    try:
        return np.asarray(y)
    except (TypeError, RuntimeError) as error:  # a tensor that is sparse, or requires a gradient
        told = f"y is no array of numbers: {error}"
        raise coded(ValueError(told), "not_an_array", name="y", reason=str(error)) from None
    except ValueError:
        told = "y has rows of different lengths: make it a CSR matrix, [examples, labels]"
        raise coded(ValueError(told), "ragged_rows", name="y") from None


def _of_array(y: NDArray[Any], labels: int | None) -> Csr:
    """From one label each, or from which ones there are: [examples, labels], of zeros and ones."""
    if y.ndim == 2 and y.shape[1] == 1:
        error = ValueError(f"y is an array {y.shape}: y.ravel() is one label each")
        raise coded(error, "column_vector", name="y", shape=y.shape)
    if y.ndim == 2 and y.dtype.kind in "biuf" and ((y == 0) | (y == 1)).all():
        return _of_dense(y.astype(np.float32))
    if y.ndim != 1 or y.dtype.kind not in "iu":
        expected = "a CSR matrix, one label each (1-D, whole numbers) or zeros and ones, [examples, labels],"
        error = ValueError(f"y is an array {y.shape} of {y.dtype}: {expected} are expected")
        raise coded(error, "not_labels", name="y", shape=y.shape, dtype=str(y.dtype))
    least, most = (int(y.min()), int(y.max())) if len(y) else (0, -1)
    count = labels or most + 1
    if least < 0:
        raise _out_of_range(least, count, f"a label {least}: labels are counted from 0")
    if count > MOST:
        raise _out_of_range(most, MOST, f"the label {most}, at most {MOST:,} can be told apart")
    if most >= count:
        raise _out_of_range(most, count, f"the label {most}, there are {count:,}: {WAY_OUT}")
    return Csr(np.arange(len(y) + 1), y.astype(np.int32), np.ones(len(y), np.float32), (len(y), count))


def _out_of_range(given: int, size: int, told: str) -> ValueError:
    return coded(ValueError(f"y has {told}"), "out_of_range", name="y", given=given, size=size)
