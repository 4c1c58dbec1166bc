"""Views of arrays in kernels, compared with NumPy slices."""

import gc
import sys
from typing import Any

import numpy as np
import pytest
from numba.core.errors import TypingError

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.views import between, row

MATRIX = np.arange(24, dtype=np.float32).reshape(4, 6)


@kernel
def row_of(matrix, i):  # type: ignore[no-untyped-def]  # of kernels
    return row(matrix, i).copy()


@kernel
def part_of(vector, low, high):  # type: ignore[no-untyped-def]
    return between(vector, low, high).copy()


@kernel
def fill(matrix, i, low, high, value):  # type: ignore[no-untyped-def]
    between(row(matrix, i), low, high)[:] = value


@pytest.mark.parametrize("kind", [np.float32, np.uint16, np.int64])
def test_row_and_between_equal_numpy_slices(kind: type) -> None:
    matrix: Any = MATRIX.astype(kind)
    for i in (0, 3):
        assert (row_of(matrix, np.int32(i)) == matrix[i]).all()
        assert (part_of(matrix[i], 2, 6) == matrix[i, 2:6]).all()
    assert len(part_of(matrix[0], 2, 2)) == 0
    assert row_of(matrix, 0).dtype == kind


def test_writing_to_a_view_changes_the_array() -> None:
    matrix: Any = MATRIX.copy()
    column = MATRIX[:, :1].copy()
    fill(matrix, 2, 1, 4, -1)
    assert (matrix[2] == [12, -1, -1, -1, 16, 17]).all()
    assert (np.delete(matrix, 2, 0) == np.delete(MATRIX, 2, 0)).all()
    fill(column, 3, 0, 1, 7)
    assert (column[:, 0] == [0, 6, 12, 7]).all()


def test_views_keep_no_reference_to_the_array() -> None:
    matrix = MATRIX.copy()
    fill(matrix, 0, 0, 6, 1)
    gc.collect()
    before = sys.getrefcount(matrix)
    for _ in range(100):
        fill(matrix, 0, 0, 6, 1)
    assert sys.getrefcount(matrix) == before


@pytest.mark.parametrize("strided", [MATRIX.T, MATRIX[:, ::2], MATRIX[0]])
def test_non_contiguous_matrix_is_rejected(strided: Any) -> None:
    with pytest.raises(TypingError, match="No implementation of function"):
        row_of(strided, 0)


def test_writing_to_a_read_only_array_is_rejected() -> None:
    fixed = MATRIX.copy()
    fixed.flags.writeable = False
    assert (row_of(fixed, 1) == MATRIX[1]).all()
    with pytest.raises(TypingError):
        fill(fixed, 0, 0, 6, 1)
