"""A balanced tree over the rows: each node halves its rows, likes with likes, so that a vector's leaf has its likes.

Node n, counted from 1, has the children 2n and 2n + 1; the nodes of a level share the rows equally, in their order: the
i-th of 2**l has those from `rows * i // 2**l` on.
"""

import numpy as np

from oddlot.sparse.kernels.choosing import mark_taken
from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.rows import add_scaled, dot

ROUNDS = 3
"""of two-means in a node of a tree that is made for the first time; later ones begin with the halves of the last one"""


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


@kernel
def measure_lengths(part, parts, weight, scales):
    """What makes each row of length 1; a row of zeros stays."""
    rows = weight.shape[0]
    for row in range(rows * part // parts, rows * (part + 1) // parts):
        length = np.sqrt(dot(weight[row], weight[row]))
        scales[row] = np.float32(1) / length if length > 0 else np.float32(0)


@kernel
def average_leaves(part, parts, depth, order, weight, bias, centers, center_biases):
    """The mean row of every leaf."""
    rows, leaves = weight.shape[0], 1 << depth
    for leaf in range(leaves * part // parts, leaves * (part + 1) // parts):
        low, high = rows * leaf // leaves, rows * (leaf + 1) // leaves
        center = centers[leaves + leaf]
        center[:] = 0
        center_biases[leaves + leaf] = 0
        for i in range(low, high):
            add_scaled(np.float32(1) / np.float32(high - low), weight[order[i]], center)
            center_biases[leaves + leaf] += bias[order[i]] / np.float32(high - low)


@kernel
def average_nodes(depth, centers, center_biases):
    """The mean of its two children for every other node."""
    for node in range((1 << depth) - 1, 0, -1):
        centers[node] = np.float32(0.5) * (centers[2 * node] + centers[2 * node + 1])
        center_biases[node] = np.float32(0.5) * (center_biases[2 * node] + center_biases[2 * node + 1])


@kernel
def keep_best(node, value, nodes, values, kept):
    """Put the node in its place among the best, of which there are `kept`; how many there are then."""
    most = nodes.shape[0]
    if kept == most and value <= values[most - 1]:
        return kept
    place = min(kept, most - 1)
    while place > 0 and values[place - 1] < value:
        values[place], nodes[place] = values[place - 1], nodes[place - 1]
        place -= 1
    values[place], nodes[place] = value, node
    return min(kept + 1, most)


@kernel
def descend(part, parts, hidden, centers, center_biases, depth, first_level, leaves):
    """The leaves of every example with the largest mean logit, the best one first.

    All nodes of `first_level` are asked, and from there on the children of the best, as many as there are `leaves`.
    """
    examples, beam = leaves.shape
    best, nodes, values = np.empty(beam, np.int64), np.empty(beam, np.int64), np.empty(beam, np.float32)
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        vector, kept = hidden[e], 0
        for node in range(1 << first_level, 2 << first_level):
            value = dot(vector, centers[node]) + center_biases[node]
            kept = keep_best(node, value, nodes, values, kept)
        for _ in range(first_level, depth):
            best[:kept] = nodes[:kept]
            parents, kept = kept, 0
            for i in range(parents):
                for child in range(2 * best[i], 2 * best[i] + 2):
                    value = dot(vector, centers[child]) + center_biases[child]
                    kept = keep_best(child, value, nodes, values, kept)
        leaves[e] = nodes - (1 << depth)


@kernel
def take_leaves(part, parts, leaves, depth, order, starts, rows, counts, seen, mark):
    """The rows of every example's leaves."""
    mine, total = seen[part], order.shape[0]
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        at = starts[e] + counts[e]
        mark_taken(rows[starts[e] : at], mine, mark + e)
        for leaf in leaves[e]:
            for i in range(total * leaf >> depth, total * (leaf + 1) >> depth):
                row = order[i]
                if mine[row] != mark + e:
                    mine[row] = mark + e
                    rows[at] = row
                    at += 1
        counts[e] = at - starts[e]
