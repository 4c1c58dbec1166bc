"""Trimmed means of columns of numbers, with a sorting network over a tile that stays in the first-level cache."""

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # it has no stubs
from numba import carray, types  # type: ignore[attr-defined]  # numba does not list it
from numba.extending import intrinsic

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.prefetch import prefetch

TILE = 256
"""Columns of a tile."""


def _float_pointer(_typing: Any, address: Any) -> Any:
    """Implement `float_pointer(address)`: convert an address to a pointer to float32."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(address), generate


float_pointer: Any = intrinsic(_float_pointer)


@kernel
def trim_columns(addresses, pairs, trim, out, counts):
    """Write the mean of each column without its `trim` smallest and largest values into `out`.

    `addresses` has the address of each row of float32 numbers, as long as `out`. `pairs` is a network that moves the
    smallest values of a column to its start and the largest to its end. Add the number of values of each row below or
    above all kept values to `counts`.
    """
    count, numbers = addresses.size, out.size
    tile = np.empty((count, TILE), np.float32)
    low, high, total = np.empty(TILE, np.float32), np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    zero, one = np.float32(0), np.float32(1)
    share = np.float32(1 / (count - 2 * trim))
    for start in range(0, numbers, TILE):
        size = min(TILE, numbers - start)
        for row in range(count):
            source, target = carray(float_pointer(addresses[row] + 4 * start), size), tile[row]
            for k in range(size):
                target[k] = source[k]
            for k in range(TILE, 2 * TILE, 16):
                prefetch(source, k)
        for pair in range(pairs.shape[0]):
            first, second = tile[pairs[pair, 0]], tile[pairs[pair, 1]]
            for k in range(TILE):
                x, y = first[k], second[k]
                first[k] = min(y, x)
                second[k] = max(x, y)
        kept = tile[trim]
        for k in range(TILE):
            low[k] = high[k] = total[k] = kept[k]
        for row in range(trim + 1, count - trim):
            kept = tile[row]
            for k in range(TILE):
                x = kept[k]
                low[k] = min(low[k], x)
                high[k] = max(high[k], x)
                total[k] += x
        result = out[start : start + size]
        for k in range(size):
            result[k] = total[k] * share
        for row in range(count):
            source, inside = carray(float_pointer(addresses[row] + 4 * start), size), zero
            for k in range(size):
                x = source[k]
                inside += one if (x >= low[k]) & (x <= high[k]) else zero
            counts[row] += size - np.int64(inside)
