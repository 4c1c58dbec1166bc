"""A balanced tree over the rows, each node of which halves its rows, likes with likes, from the halves that it had.

The nodes of a level share the rows equally, in their order: the i-th of 2**l has those from `rows * i // 2**l` on.
"""

import numpy as np

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.rows import add_scaled, dot


@kernel
def add_rows(low, high, order, weight, scales, total):
    """The sum of these rows, each of length 1."""
    total[:] = 0
    for i in range(low, high):
        add_scaled(scales[order[i]], weight[order[i]], total)


@kernel
def halve(low, half, high, order, spare, weight, scales, scores, means, rounds):
    """Two-means with halves that have their sizes: those rows left of `half` that are more like the left mean."""
    for _ in range(rounds):
        add_rows(low, half, order, weight, scales, means[0])
        add_rows(half, high, order, weight, scales, means[1])
        means[1] /= np.float32(high - half)
        add_scaled(np.float32(-1) / np.float32(half - low), means[0], means[1])
        for i in range(low, high):
            scores[i] = scales[order[i]] * dot(weight[order[i]], means[1])
        middle = np.partition(scores[low:high], half - low)[half - low]
        left, right = low, half
        for i in range(low, high):
            if scores[i] < middle:
                spare[left] = order[i]
                left += 1
        for i in range(low, high):
            if scores[i] == middle and left < half:
                spare[left] = order[i]
                left += 1
            elif scores[i] >= middle:
                spare[right] = order[i]
                right += 1
        order[low:high] = spare[low:high]


@kernel
def grow(part, parts, level, levels, order, spare, weight, scales, scores, rounds):
    """Halve all nodes of this level, and those below them, `levels` in all: a node's rows then stay in a cache."""
    rows, nodes = weight.shape[0], 1 << level
    means = np.empty((2, weight.shape[1]), np.float32)
    for node in range(nodes * part // parts, nodes * (part + 1) // parts):
        for below_it in range(levels):
            count = nodes << below_it
            for child in range(node << below_it, (node + 1) << below_it):
                low, high = rows * child // count, rows * (child + 1) // count
                half = rows * (2 * child + 1) // (2 * count)
                if low < half < high:
                    halve(low, half, high, order, spare, weight, scales, scores, means, rounds)
