"""Optimizer steps on rows with collected gradients."""

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.prefetch import AHEAD, prefetch_row
from oddlot.sparse.kernels.rows import adam
from oddlot.sparse.kernels.views import row


@kernel
def adam_rows(part, parts, rows, gradients, weight, first, second, how):
    """Make one step of Adam on each of the distinct `rows` [n], with `gradients` [n, columns]."""
    low, high = rows.shape[0] * part // parts, rows.shape[0] * (part + 1) // parts
    for i in range(low, high):
        one, later = rows[i], rows[min(i + AHEAD, high - 1)]
        prefetch_row(weight, later)
        prefetch_row(first, later)
        prefetch_row(second, later)
        adam(one, row(weight, one), row(gradients, i), row(first, one), row(second, one), how)
