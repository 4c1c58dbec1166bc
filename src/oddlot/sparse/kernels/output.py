"""A sampled output layer: the logits of chosen rows, their loss, and the step on these rows."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.prefetch import AHEAD, prefetch, prefetch_row
from oddlot.sparse.kernels.rows import add_both, catch_up, dot, total_of, update
from oddlot.sparse.kernels.views import between, row


@kernel
def forward(part, parts, bounds, bucket_starts, row_by, example_by, slot_by, weight, bias, hidden, logits):
    """The logit of every pair, each row being read once."""
    chunks = bounds.shape[0] - 1
    at = bucket_starts[bounds[chunks * part // parts]]
    end = bucket_starts[bounds[chunks * (part + 1) // parts]]
    while at < end:
        one = row_by[at]
        prefetch_row(weight, row_by[min(at + AHEAD, end - 1)])
        w, b = row(weight, one), bias[one]
        while at < end and row_by[at] == one:
            logits[slot_by[at]] = dot(w, row(hidden, example_by[at])) + b
            at += 1


@kernel
def softmax(part, parts, starts, counts, labels, sure, log_weights, logits, deltas, losses):
    """Cross entropy of the softmax over each example's active set, and its gradient by the logits.

    Of `counts[e]` active rows the first `labels[e]` are the labels, which share the target equally. Those from
    `sure[e]` on were taken by chance, and each stands for `exp(log_weights[slot])` rows.
    """
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        low, high, mine = starts[e], starts[e] + counts[e], starts[e] + labels[e]
        losses[e] = 0
        deltas[low:high] = 0
        if mine == low:
            continue
        for slot in range(low + sure[e], high):
            logits[slot] += log_weights[slot]
        largest = logits[low]
        for slot in range(low, high):
            largest = max(largest, logits[slot])
        for slot in range(low, high):
            deltas[slot] = np.exp(logits[slot] - largest)
        total = total_of(between(deltas, low, high))
        deltas[low:high] *= np.float32(1) / total
        share = np.float32(1) / np.float32(labels[e])
        for slot in range(low, mine):
            losses[e] += (np.log(total) + largest - logits[slot]) * share
            deltas[slot] -= share


@kernel
def sum_row(at, end, row_by, example_by, slot_by, w, hidden, deltas, scale, gradient, hidden_gradients):
    """The gradient of the row whose pairs begin at `at`, and its share of the hidden ones.

    Returns where its pairs end, and its bias's gradient.
    """
    one, bias_gradient = row_by[at], np.float32(0)
    gradient[:] = 0
    while at < end and row_by[at] == one:
        prefetch(deltas, slot_by[min(at + AHEAD, end - 1)])
        e, delta = example_by[at], deltas[slot_by[at]] * scale
        if delta != 0:  # as of examples without labels, whose hidden vector may be anything
            add_both(delta, row(hidden, e), gradient, w, row(hidden_gradients, e))
            bias_gradient += delta
        at += 1
    return at, bias_gradient


@kernel
def backward(
    part, parts, bounds, bucket_starts, row_by, example_by, slot_by, weight, bias, hidden, deltas, scale,
    hidden_gradients, kind, first, second, bias_first, bias_second, how,
):  # fmt: skip
    """Every row's gradient, and its optimizer's step at once; each chunk's share of the hidden vectors' gradient."""
    gradient, of_bias = np.empty(weight.shape[1], np.float32), np.empty(1, np.float32)
    last_first, last_second = first.shape[0] - 1, second.shape[0] - 1
    chunks = bounds.shape[0] - 1
    for chunk in range(chunks * part // parts, chunks * (part + 1) // parts):
        mine = hidden_gradients[chunk]
        mine[:] = 0
        at, end = bucket_starts[bounds[chunk]], bucket_starts[bounds[chunk + 1]]
        while at < end:
            one, later = row_by[at], row_by[min(at + AHEAD, end - 1)]
            w, m, v = row(weight, one), min(one, last_first), min(one, last_second)
            prefetch_row(weight, later)
            prefetch_row(first, min(later, last_first))
            prefetch_row(second, min(later, last_second))
            at, of_bias[0] = sum_row(
                at, end, row_by, example_by, slot_by, w, hidden, deltas, scale, gradient, mine
            )
            update(kind, one, w, gradient, row(first, m), row(second, v), how)
            update(kind, one, row(bias, one), of_bias, row(bias_first, m), row(bias_second, v), how)


@kernel
def collect(
    part, parts, bounds, bucket_starts, row_by, example_by, slot_by, weight, hidden, deltas, scale,
    hidden_gradients, places, rows, gradients, bias_gradients,
):  # fmt: skip
    """The same without a step: the touched rows and their gradients, a chunk's from `places[chunk]` on."""
    chunks = bounds.shape[0] - 1
    for chunk in range(chunks * part // parts, chunks * (part + 1) // parts):
        mine, place = hidden_gradients[chunk], places[chunk]
        mine[:] = 0
        at, end = bucket_starts[bounds[chunk]], bucket_starts[bounds[chunk + 1]]
        while at < end:
            one = row_by[at]
            w, gradient = row(weight, one), row(gradients, place)
            at, bias_gradients[place] = sum_row(
                at, end, row_by, example_by, slot_by, w, hidden, deltas, scale, gradient, mine
            )
            rows[place] = one
            place += 1


@kernel
def catch_up_rows(
    part, parts, rows, weight, bias, first, second, bias_first, bias_second, how, touched, step, corrections
):
    """Bring rows, each of which occurs once, to where dense Adam would have them after so many steps."""
    for i in range(rows.shape[0] * part // parts, rows.shape[0] * (part + 1) // parts):
        one = rows[i]
        since = touched[one]
        if since < step:
            catch_up(one, row(weight, one), row(first, one), row(second, one), how, since, step, corrections)
            of_bias, m, v = row(bias, one), row(bias_first, one), row(bias_second, one)
            catch_up(one, of_bias, m, v, how, since, step, corrections)
            touched[one] = step
