"""Clustered rows, and the rows that a sampler finds."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse import SampledLinear
from oddlot.sparse.active_set import Labels

COLUMNS = 32


def rows_for(
    sampler: Any, weight: NDArray[Any], hidden: NDArray[Any], bias: NDArray[Any] | float = 0.0
) -> list[set[int]]:
    """Return the rows found for each hidden vector, without its label and the randomly drawn rows."""
    layer = SampledLinear(weight.shape[1], len(weight), sampler, None)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.add_(torch.as_tensor(bias))
        layer(torch.from_numpy(hidden), torch.zeros(len(hidden), dtype=torch.int64))
        batch = layer._begin(np.ascontiguousarray(hidden), Labels.of(np.zeros(len(hidden), np.int64), 1))
    active = batch.active
    spans = zip(active.starts + 1, active.starts + active.sure, strict=True)
    found = [active.rows[low:high] for low, high in spans]
    assert all(len(set(rows)) == len(rows) for rows in found)
    return [set(rows.tolist()) for rows in found]


def some_rows(count: int = 2000) -> NDArray[np.float32]:
    """Return `count` rows in clusters of ten."""
    chance = np.random.default_rng(2)
    centers = np.repeat(chance.standard_normal((count // 10, COLUMNS)), 10, axis=0)
    rows: NDArray[np.float32] = (centers + 0.5 * chance.standard_normal((count, COLUMNS))).astype(np.float32)
    return rows
