"""Matrices in CSR format."""

import numpy as np
import pytest

from oddlot.sparse.csr import Csr

ROWS = Csr(
    np.array([0, 2, 2, 5, 6]), np.array([1, 3, 0, 1, 2, 4], np.int32), np.arange(6, dtype=np.float32), (4, 5)
)


@pytest.mark.parametrize(("low", "high"), [(0, 4), (1, 3), (2, 9), (1, 2), (3, 3)])
def test_between_returns_a_view_of_the_rows(low: int, high: int) -> None:
    some, copied = ROWS.between(low, high), ROWS.rows(np.arange(low, min(high, 4)))
    assert (some.indptr.tolist(), some.shape) == (copied.indptr.tolist(), copied.shape)
    assert (some.indices.tolist(), some.data.tolist()) == (copied.indices.tolist(), copied.data.tolist())
    assert not len(some.data) or np.shares_memory(some.data, ROWS.data)
