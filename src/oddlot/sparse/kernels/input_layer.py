"""Kernels of a layer for sparse input: each feature has a row, and an example is a weighted sum of a few rows."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.prefetch import AHEAD, prefetch_row
from oddlot.sparse.kernels.row_operations import add_scaled, update
from oddlot.sparse.kernels.views import row


@kernel
def forward(part, parts, starts, counts, features, values, weight, bias, out):
    """Compute `out[e] = bias + sum of values[slot] * weight[features[slot]]` over the slots of example e.

    `weight` is [features, columns], `bias` is [columns], and `out` is [examples, columns].
    """
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        out[e] = bias
        last = starts[e] + counts[e] - 1
        for slot in range(starts[e], last + 1):
            prefetch_row(weight, features[min(slot + AHEAD, last)])
            add_scaled(values[slot], row(weight, features[slot]), row(out, e))


@kernel
def backward(
    part, parts, bounds, bucket_starts, row_by, example_by, slot_by, values, weight, gradients, kind, first,
    second, how,
):  # fmt: skip
    """Compute the gradient of each row that has a pair, and make the optimizer's step on this row at once.

    `weight` is [features, columns], and `gradients`, of the output, is [examples, columns].
    """
    gradient, chunks = np.empty(weight.shape[1], np.float32), bounds.shape[0] - 1
    last_first, last_second = first.shape[0] - 1, second.shape[0] - 1
    at = bucket_starts[bounds[chunks * part // parts]]
    end = bucket_starts[bounds[chunks * (part + 1) // parts]]
    while at < end:
        one, later = row_by[at], row_by[min(at + AHEAD, end - 1)]
        prefetch_row(weight, later)
        prefetch_row(first, min(later, last_first))
        prefetch_row(second, min(later, last_second))
        gradient[:] = 0
        while at < end and row_by[at] == one:
            add_scaled(values[slot_by[at]], row(gradients, example_by[at]), gradient)
            at += 1
        m, v = row(first, min(one, last_first)), row(second, min(one, last_second))
        update(kind, one, row(weight, one), gradient, m, v, how)


@kernel
def collect(
    part, parts, bounds, bucket_starts, row_by, example_by, slot_by, values, gradients, places, rows, row_gradients
):  # fmt: skip
    """Compute the gradients of the rows that have a pair, without a step.

    `rows` [touched] and `row_gradients` [touched, columns] get the rows and their gradients, for chunk c from
    `places[c]` on. `gradients`, of the output, is [examples, columns].
    """
    chunks = bounds.shape[0] - 1
    first, last = chunks * part // parts, chunks * (part + 1) // parts
    if first == last:
        return
    at, end, place = bucket_starts[bounds[first]], bucket_starts[bounds[last]], places[first]
    while at < end:
        one = row_by[at]
        row_gradients[place] = 0
        while at < end and row_by[at] == one:
            add_scaled(values[slot_by[at]], row(gradients, example_by[at]), row(row_gradients, place))
            at += 1
        rows[place] = one
        place += 1
