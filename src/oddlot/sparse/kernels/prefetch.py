"""Prefetching of memory into the cache."""

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # it has no stubs
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.views import row

LINE = 64
"""Bytes of a cache line."""
AHEAD = 16
"""Number of rows or pairs between a prefetch and its use."""


def _prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Implement `prefetch(array, index)`: load the cache line of an element into the second-level cache.

    It never faults, so the index may be beyond the end.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        make = make_array(signature.args[0])
        data = make(context, builder, arguments[0]).data
        address = builder.gep(data, [arguments[1]])
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", (address.type,), kind)
        builder.call(function, [address, word(0), word(2), word(1)])  # read, L2, data cache
        return context.get_dummy_value()

    return types.void(array, index), generate


prefetch: Any = intrinsic(_prefetch)


@kernel
def prefetch_row(matrix, i):
    """Prefetch all cache lines of row `i` of a matrix."""
    numbers = row(matrix, i)
    for place in range(0, numbers.shape[0], LINE // numbers.itemsize):
        prefetch(numbers, place)
