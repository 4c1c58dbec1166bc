"""Parts of arrays for inner loops.

Numba counts who refers to an array, also for a slice of it that lives for one call: some 60 ns where a row's whole step
takes 200. These views are not counted. The array that they are of lives longer, as kernels are given it.
"""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array


def _view(context: Any, builder: Any, signature: Any, array: Any, begin: Any, length: Any) -> Any:
    """The 1-D array of so many numbers that begins at the number `begin` of a C-contiguous one."""
    data = make_array(signature.args[0])(context, builder, array).data
    out = make_array(signature.return_type)(context, builder)
    size = context.get_abi_sizeof(context.get_data_type(signature.return_type.dtype))
    step = context.get_constant(types.intp, size)
    populate_array(
        out, data=builder.gep(data, [begin]), shape=[length], strides=[step], itemsize=step, meminfo=None
    )
    return out._getvalue()


def _row(_typing: Any, matrix: Any, _number: Any) -> Any:
    """`row(matrix, i)` is `matrix[i]`, of a matrix that is C-contiguous; `i` is not below 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        matrix = make_array(signature.args[0])(context, builder, arguments[0])
        columns = cgutils.unpack_tuple(builder, matrix.shape)[1]
        begin = builder.mul(arguments[1], columns)
        return _view(context, builder, signature, arguments[0], begin, columns)

    if not isinstance(matrix, types.Array) or (matrix.ndim, matrix.layout) != (2, "C"):
        return None
    return types.Array(matrix.dtype, 1, "C", readonly=not matrix.mutable)(matrix, types.intp), generate


def _between(_typing: Any, vector: Any, _low: Any, _high: Any) -> Any:
    """`between(vector, low, high)` is `vector[low:high]`, of a vector that is C-contiguous and has these places."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        length = builder.sub(arguments[2], arguments[1])
        return _view(context, builder, signature, arguments[0], arguments[1], length)

    if not isinstance(vector, types.Array) or (vector.ndim, vector.layout) != (1, "C"):
        return None
    return vector(vector, types.intp, types.intp), generate


row: Any = intrinsic(_row)
between: Any = intrinsic(_between)
