"""What is done to one row: short loops over slices, which vectorise, where indices computed from a base would not."""

import numpy as np

from oddlot.sparse.kernels.bf16 import narrowed, stirred, widened
from oddlot.sparse.kernels.jit import kernel

SGD, ADAGRAD, ADAM = 0, 1, 2
LR, BETA1, BETA2, EPS, SCALE1, SCALE2, STEP = range(7)
"""places in an optimizer's numbers; SCALE1 and SCALE2 undo the moments' beginning at 0"""
NOTHING = np.float32(1e-9)
"""of its first step, after which what Adam moves a row that waits is left out"""


@kernel
def dot(a, b):
    """The inner product; `b` may be whole numbers."""
    total = np.float32(0)
    for i in range(a.shape[0]):
        total += a[i] * np.float32(b[i])
    return total


@kernel
def total_of(a):
    """The sum. A loop that writes beside would sum in one order or another, as its arrays happen to lie in memory."""
    total = np.float32(0)
    for i in range(a.shape[0]):
        total += a[i]
    return total


@kernel
def add_scaled(a, x, y):
    """`y += a x`."""
    for i in range(x.shape[0]):
        y[i] += a * x[i]


@kernel
def add_both(a, hidden, gradient, weight, hidden_gradient):
    """One pair's share of the row's gradient and of the hidden vector's."""
    for i in range(hidden.shape[0]):
        gradient[i] += a * hidden[i]
        hidden_gradient[i] += a * weight[i]


@kernel
def adam(row, weight, gradient, first, second, how):
    """One step of Adam (Kingma, Ba, ICLR 2015, algorithm 1); moments are float32, or bfloat16 rounded by chance,
    which depends on the row's number, the place in it and the step alone."""
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
    """One step on one row. Of Adagrad, `second` is the row's one number: the mean squares, summed over steps."""
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
    """What dense Adam would have done to a row since the step `touched`, when it had its last gradient, until `step`.

    Without gradients the moments shrink by b1 and b2 a step, so that the j-th step moves a weight by `lr * m /
    sqrt(v) * (b1 / sqrt(b2)) ** j * corrections[touched + j]`: a sum that all weights of the row share. eps is left
    out; weights that never had a gradient do not move.
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
    """Of two rows, the sum over their columns."""
    total = np.float32(0)
    for column in range(a.shape[0]):
        apart = a[column] - b[column]
        total += apart * apart
    return total
