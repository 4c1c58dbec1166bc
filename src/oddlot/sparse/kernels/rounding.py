"""Quantization of rows to 8-bit integers."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.views import row

LARGEST = np.float32(127)
"""Largest signed number of 8 bits."""
SMALLEST = np.float32(1e-30)
"""Smallest magnitude of a row that is represented."""


@kernel
def largest_size(numbers):
    """Return the largest absolute value."""
    largest = np.float32(0)
    for i in range(numbers.shape[0]):
        largest = max(largest, abs(numbers[i]))
    return largest


@kernel
def round_numbers(numbers, factor, whole):
    """Round `numbers * factor` to int8, `whole`. NaN and values out of range become 0."""
    for i in range(numbers.shape[0]):
        near = np.floor(numbers[i] * factor + np.float32(0.5))
        whole[i] = np.int8(near if abs(near) <= LARGEST else np.float32(0))


@kernel
def round_rows(part, parts, rows, whole, scales):
    """Quantize each row to int8, with 127 or -127 for its largest value: `rows[i]` is about `whole[i] * scales[i]`.

    `rows` and `whole` are [rows, columns], and `scales` is [rows]. Rows that are nearly 0 or have infinite values
    become zeros.
    """
    count = rows.shape[0]
    for i in range(count * part // parts, count * (part + 1) // parts):
        largest = largest_size(row(rows, i))
        scales[i] = largest / LARGEST
        round_numbers(row(rows, i), LARGEST / largest if largest > SMALLEST else np.float32(0), row(whole, i))
