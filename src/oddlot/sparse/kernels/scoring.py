"""The largest logits of few rows."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.rows import dot
from oddlot.sparse.kernels.tree import keep_best


@kernel
def best_in_leaves(part, parts, hidden, weight, bias, leaves, depth, order, best, values):
    """The rows with the largest logits of those in every example's leaves, the best first; -1 where there are fewer."""
    total = order.shape[0]
    examples = hidden.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        kept, vector = 0, hidden[e]
        best[e] = -1
        values[e] = -np.inf
        for leaf in leaves[e]:
            for i in range(total * leaf >> depth, total * (leaf + 1) >> depth):
                row = order[i]
                kept = keep_best(row, dot(vector, weight[row]) + bias[row], best[e], values[e], kept)
