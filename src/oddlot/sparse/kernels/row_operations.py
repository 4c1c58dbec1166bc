"""Compiled operations on rows: products, sums and optimizer steps. Loops over slices vectorize."""

import numpy as np

from oddlot.sparse.kernels.bf16 import narrowed, stirred, widened
from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.prefetch import AHEAD, prefetch_row
from oddlot.sparse.kernels.views import row

SGD, ADAGRAD, ADAM = 0, 1, 2
LR, BETA1, BETA2, EPS, SCALE1, SCALE2, STEP = range(7)
"""Indices of the parameters `how` of an optimizer. SCALE1 and SCALE2 are the bias corrections of Adam's moments."""
NOTHING = np.float32(1e-9)
"""Size of a skipped step of Adam, relative to the first skipped step, below which the remaining steps are ignored."""


@kernel
def dot(a, b):
    """Return the inner product of two vectors. `b` may be an array of integers."""
    total = np.float32(0)
    for i in range(a.shape[0]):
        total += a[i] * np.float32(b[i])
    return total


@kernel
def total_of(a):
    """Return the sum of a vector.

    The sum is a separate function because in a loop that also writes, the order of summation would depend on the memory
    addresses of the arrays.
    """
    total = np.float32(0)
    for i in range(a.shape[0]):
        total += a[i]
    return total


@kernel
def add_scaled(a, x, y):
    """Compute `y += a * x`."""
    for i in range(x.shape[0]):
        y[i] += a * x[i]


@kernel
def add_both(a, hidden, gradient, weight, hidden_gradient):
    """Add the terms of one logit to the gradients of its row and its hidden vector. `a` is the logit's gradient."""
    for i in range(hidden.shape[0]):
        gradient[i] += a * hidden[i]
        hidden_gradient[i] += a * weight[i]


@kernel
def adam(row, weight, gradient, first, second, how):
    """Make one step of Adam on a row (Kingma, Ba, ICLR 2015, algorithm 1).

    Moments are float32, or bfloat16 with stochastic rounding. The rounding depends only on the row, the column and the
    step.
    """
    one, step = np.float32(1), np.uint32(how[STEP])
    rate, b1, b2, eps, scale = how[LR] * how[SCALE1], how[BETA1], how[BETA2], how[EPS], how[SCALE2]
    for i in range(weight.shape[0]):
        noise = stirred(row, i, step)
        m = b1 * widened(first[i]) + (one - b1) * gradient[i]
        v = b2 * widened(second[i]) + (one - b2) * gradient[i] * gradient[i]
        first[i] = narrowed(m, first[i], noise)
        second[i] = narrowed(v, second[i], noise >> np.uint32(16))
        weight[i] -= rate * m / (np.sqrt(v * scale) + eps)


@kernel
def update(kind, row, weight, gradient, first, second, how):
    """Make one step of the optimizer `kind` on a row.

    For Adagrad, `second` is [1]: the sum of the mean squared gradients over all steps.
    """
    if kind == ADAM:
        adam(row, weight, gradient, first, second, how)
        return
    rate = how[LR]
    if kind == ADAGRAD:
        second[0] += dot(gradient, gradient) / np.float32(gradient.shape[0])
        rate /= np.sqrt(second[0]) + how[EPS]
    add_scaled(-rate, gradient, weight)


@kernel
def catch_up(row, weight, first, second, how, touched, step, corrections):
    """Apply the steps of dense Adam that a row skipped, from step `touched + 1` to `step`.

    Step `touched` was its last step with a gradient. Afterwards the moments shrink by b1 and b2 at each step, so step
    `touched + j` moves a weight by `lr * m / sqrt(v) * (b1 / sqrt(b2)) ** j * corrections[touched + j]`. All weights of
    the row share the sum over j. eps is ignored. Weights that never had a gradient do not move.
    """
    gap = step - touched
    ratio, factor, total = how[BETA1] / np.sqrt(how[BETA2]), np.float32(1), np.float32(0)
    for j in range(1, gap + 1):
        factor *= ratio
        total += factor * corrections[min(touched + j, corrections.shape[0] - 1)]
        if factor < NOTHING:
            break
    fade1, fade2 = how[BETA1] ** np.float32(gap), how[BETA2] ** np.float32(gap)
    for i in range(weight.shape[0]):
        m, v = widened(first[i]), widened(second[i])
        noise = stirred(row, i, np.uint32(step))
        if v > 0:
            weight[i] -= how[LR] * total * m / np.sqrt(v)
        first[i] = narrowed(m * fade1, first[i], noise)
        second[i] = narrowed(v * fade2, second[i], noise >> np.uint32(16))


@kernel
def squared_distance(a, b):
    """Return the squared Euclidean distance of two vectors."""
    total = np.float32(0)
    for column in range(a.shape[0]):
        apart = a[column] - b[column]
        total += apart * apart
    return total


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
