"""Rows as whole numbers of 8 bits."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.views import row

LARGEST = np.float32(127)
"""Largest signed number of 8 bits."""
SMALLEST = np.float32(1e-30)
"""Smallest magnitude of a row that is represented."""


@kernel
def largest_size(numbers):
    """The largest of their absolute values."""
    largest = np.float32(0)
    for i in range(numbers.shape[0]):
        largest = max(largest, abs(numbers[i]))
    return largest


@kernel
def round_numbers(numbers, factor, whole):
    """The nearest whole numbers of so many times these; 0 of what is no number or has no place."""
    for i in range(numbers.shape[0]):
        near = np.floor(numbers[i] * factor + np.float32(0.5))
        whole[i] = np.int8(near if abs(near) <= LARGEST else np.float32(0))


@kernel
def round_rows(part, parts, rows, whole, scales):
    """Each row's whole numbers, the largest 127 or -127, and by what they are multiplied to be the row, about; zeros of
    rows of hardly any size, or that are not finite."""
    count = rows.shape[0]
    for i in range(count * part // parts, count * (part + 1) // parts):
        largest = largest_size(row(rows, i))
        scales[i] = largest / LARGEST
        round_numbers(row(rows, i), LARGEST / largest if largest > SMALLEST else np.float32(0), row(whole, i))
