"""The labels of a batch, in the forms that users have them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.errors import coded
from oddlot.sparse.validation import as_array, checked_starts


@dataclass(frozen=True)
class Labels:
    """Example e has the labels `rows[starts[e]:starts[e + 1]]`."""

    starts: NDArray[np.int64]
    rows: NDArray[np.int32]

    @classmethod
    def of(cls, given: Any, out_features: int) -> "Labels":
        """From one label each (a 1-D tensor; -1: none), several (2-D, filled up with -1), or the arrays (starts, rows).

        ValueError: one is none of the `out_features`, or the arrays are none of a CSR matrix.
        """
        if isinstance(given, tuple):
            rows = as_array(given[-1], "labels") if len(given) == 2 else None
            if rows is None or rows.ndim != 1:
                error = ValueError("labels are (starts, labels), two 1-D arrays of whole numbers")
                raise coded(error, "not_1d_integers", name="labels")
            starts = checked_starts(given[0], len(rows), "labels")
        else:
            table = _table(given)
            there = table != -1
            starts, rows = np.concatenate([[0], np.cumsum(there.sum(1))]), table[there]
        if rows.dtype.kind not in "iu" and rows.size:
            error = ValueError(f"labels are whole numbers, and not of dtype {rows.dtype}")
            raise coded(error, "wrong_dtype", name="labels", dtype=str(rows.dtype))
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < out_features:
            wrong = int(rows.min()) if rows.min() < 0 else int(rows.max())
            told = f"the label {wrong} is not among the {out_features:,} outputs, 0 to {out_features - 1:,}"
            raise coded(ValueError(told), "out_of_range", name="labels", given=wrong, size=out_features)
        return cls(starts.astype(np.int64), rows.astype(np.int32))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def most(self) -> int:
        """Of one example."""
        return int(np.diff(self.starts).max(initial=0))


def _table(given: Any) -> NDArray[Any]:
    """Several labels in a row each. ValueError: it is none, or tells of each output whether it is a label (or how
    often), as then label 0 stands more than once in every row."""
    try:
        table: NDArray[Any] = torch.as_tensor(given, device="cpu").numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        told = f"labels are whole numbers, as a tensor or as (starts, labels): {error}"
        raise coded(ValueError(told), "not_an_array", name="labels", reason=str(error)) from None
    if table.ndim not in (1, 2):
        told = f"labels have {table.ndim} dimensions: one label each, or several in a row each"
        raise coded(ValueError(told), "wrong_shape", name="labels", shape=table.shape)
    table = table[:, None] if table.ndim == 1 else table
    if table.size and ((table == 0).sum(1) > 1).all():
        wanted = "the numbers of an example's labels are expected in its row, filled up with -1"
        told = "label 0 stands twice in every row, as if there were zeros and ones, one for each output"
        raise coded(ValueError(f"{told}: {wanted}"), "zeros_and_ones", name="labels", shape=table.shape)
    return table
