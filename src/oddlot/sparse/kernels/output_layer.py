"""Kernels of a sampled output layer: the logits of chosen rows, the loss, and the optimizer's step on these rows."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.prefetch import AHEAD, prefetch, prefetch_row
from oddlot.sparse.kernels.row_operations import add_both, catch_up, dot, total_of, update
from oddlot.sparse.kernels.views import between, row


@kernel
def forward(part, parts, bounds, bucket_starts, row_by, example_by, slot_by, weight, bias, hidden, logits):
    """Compute the logit of each pair, `logits` [slots]. Each row is read once.

    `weight` is [out_features, columns], `bias` is [out_features], and `hidden` is [examples, columns].
    """
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
    """Compute the softmax cross-entropy loss of each example's active set, and its gradient with respect to the logits.

    Of the `counts[e]` active rows, the first `labels[e]` are the labels. They share the target equally. Rows from
    `sure[e]` on were drawn randomly: `log_weights` is added to their `logits`, in place. `losses` is [examples], and
    `deltas`, the gradient, is [slots]. Both are 0 for an example without labels.
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
    """Compute the gradient of the row with pairs from `at` on, and add its terms to `hidden_gradients`.

    Return the end of the row's pairs, and the gradient of its bias.
    """
    one, bias_gradient = row_by[at], np.float32(0)
    gradient[:] = 0
    while at < end and row_by[at] == one:
        prefetch(deltas, slot_by[min(at + AHEAD, end - 1)])
        e, delta = example_by[at], deltas[slot_by[at]] * scale
        if delta != 0:  # 0 without labels; the hidden vector may then not be finite
            add_both(delta, row(hidden, e), gradient, w, row(hidden_gradients, e))
            bias_gradient += delta
        at += 1
    return at, bias_gradient


@kernel
def backward(
    part, parts, bounds, bucket_starts, row_by, example_by, slot_by, weight, bias, hidden, deltas, scale,
    hidden_gradients, kind, first, second, bias_first, bias_second, how,
):  # fmt: skip
    """Compute the gradient of each row that has a pair, and make the optimizer's step on this row at once.

    `weight` is [out_features, columns], `bias` and its state are [out_features, 1], and `hidden` is [examples,
    columns]. `hidden_gradients`, [chunks, examples, columns], gets the gradient of the hidden vectors, for each chunk's
    rows. `deltas` are multiplied by `scale`.
    """
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
    """Compute the gradients of the rows that have a pair, without a step.

    `rows`, `bias_gradients` [touched] and `gradients` [touched, columns] get the rows and their gradients, for chunk c
    from `places[c]` on. `backward` describes the other arguments.
    """
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
    """Apply the skipped steps of dense Adam, until `step`, to distinct `rows` [n].

    `touched`, [out_features], is the last step of each row. `bias` and its state are [out_features, 1]. `corrections`
    is described in `catch_up`.
    """
    for i in range(rows.shape[0] * part // parts, rows.shape[0] * (part + 1) // parts):
        one = rows[i]
        since = touched[one]
        if since < step:
            catch_up(one, row(weight, one), row(first, one), row(second, one), how, since, step, corrections)
            of_bias, m, v = row(bias, one), row(bias_first, one), row(bias_second, one)
            catch_up(one, of_bias, m, v, how, since, step, corrections)
            touched[one] = step
