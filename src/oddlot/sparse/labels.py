"""The labels of a batch, from the formats that users pass."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.errors import coded
from oddlot.sparse.validation import as_array, checked_starts


@dataclass(frozen=True)
class Labels:
    """The labels of a batch. Example e has the labels `rows[starts[e]:starts[e + 1]]`."""

    starts: NDArray[np.int64]
    rows: NDArray[np.int32]

    @classmethod
    def of(cls, given: Any, out_features: int) -> "Labels":
        """Read one label each (a 1-D tensor; -1: none), several (2-D, padded with -1), or the arrays (starts, rows).

        Raise ValueError for a label that is not below `out_features`, or for arrays that are not from a CSR matrix.
        """
        if isinstance(given, tuple):
            rows = as_array(given[-1], "labels") if len(given) == 2 else None
            if rows is None or rows.ndim != 1:
                error = ValueError(
                    "labels as a tuple must be (starts, labels), two 1-D arrays of whole numbers"
                )
                raise coded(error, "not_1d_integers", name="labels")
            starts = checked_starts(given[0], len(rows), "labels")
        else:
            table = _table(given)
            there = table != -1
            starts, rows = np.concatenate([[0], np.cumsum(there.sum(1))]), table[there]
        if rows.dtype.kind not in "iu" and rows.size:
            error = ValueError(f"labels must be whole numbers, not of dtype {rows.dtype}")
            raise coded(error, "wrong_dtype", name="labels", dtype=str(rows.dtype))
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < out_features:
            wrong = int(rows.min()) if rows.min() < 0 else int(rows.max())
            told = f"label {wrong} is out of range: the outputs are 0 to {out_features - 1:,}"
            raise coded(ValueError(told), "out_of_range", name="labels", given=wrong, size=out_features)
        return cls(starts.astype(np.int64), rows.astype(np.int32))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def most(self) -> int:
        """Largest number of labels of an example."""
        return int(np.diff(self.starts).max(initial=0))


def _table(given: Any) -> NDArray[Any]:
    """Return labels as a table with a row per example. Raise ValueError for other values, such as zeros and ones."""
    try:
        table: NDArray[Any] = torch.as_tensor(given, device="cpu").numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        told = f"labels must be whole numbers, as a tensor or as (starts, labels): {error}"
        raise coded(ValueError(told), "not_an_array", name="labels", reason=str(error)) from None
    if table.ndim not in (1, 2):
        told = f"labels have {table.ndim} dimensions: use 1 (one label each) or 2 (a row of labels each)"
        raise coded(ValueError(told), "wrong_shape", name="labels", shape=table.shape)
    table = table[:, None] if table.ndim == 1 else table
    if table.size and ((table == 0).sum(1) > 1).all():
        wanted = "pass the indices of each example's labels, padded with -1"
        told = "labels look like zeros and ones for each output, because label 0 occurs twice in every row"
        raise coded(ValueError(f"{told}: {wanted}"), "zeros_and_ones", name="labels", shape=table.shape)
    return table
