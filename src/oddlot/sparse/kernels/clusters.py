"""Clusters of rows with similar directions (spherical k-means), and the search for the best clusters and rows."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.prefetch import AHEAD, prefetch_row
from oddlot.sparse.kernels.random_numbers import below, next_state
from oddlot.sparse.kernels.row_operations import add_scaled, dot, squared_distance
from oddlot.sparse.kernels.row_selection import mark_taken
from oddlot.sparse.kernels.views import between, row

LANES = 128
"""Number of running maxima that are updated at once. Lane j has the scores j, j + LANES, j + 2 LANES, ..."""
SPARE = 4
"""Number of additional candidates that are found with 8-bit rows and then scored with float32 rows."""


@kernel
def measure_lengths(part, parts, weight, scales):
    """Compute the reciprocal of the L2 norm of each row, `scales` [rows]. It is 0 for a row of zeros."""
    rows = weight.shape[0]
    for one in range(rows * part // parts, rows * (part + 1) // parts):
        length = np.sqrt(dot(row(weight, one), row(weight, one)))
        scales[one] = np.float32(1) / length if length > 0 else np.float32(0)


@kernel
def average(part, parts, begins, members, weight, bias, scales, reach, centers, means, spreads, biases):
    """Compute the statistics of each cluster from its rows, `members[begins[c]:begins[c + 1]]`.

    - `means`, [clusters, columns]: mean row.
    - `centers`, [clusters, columns]: mean of the rows scaled to length 1 (with `scales`), itself scaled to length 1.
    - `spreads`, [clusters]: `reach` times the root mean square distance of the rows from their mean.
    - `biases`, [clusters]: mean bias of the rows.

    A cluster without rows keeps its center, and may get rows later. Its bias is -inf, so it is never among the best.
    """
    clusters, columns = centers.shape
    center = np.empty(columns, np.float32)
    for c in range(clusters * part // parts, clusters * (part + 1) // parts):
        low, high = begins[c], begins[c + 1]
        mean, squares = row(means, c), np.float32(0)
        biases[c] = 0 if high > low else -np.inf
        mean[:] = 0
        center[:] = 0
        for i in range(low, high):
            one = members[i]
            prefetch_row(weight, members[min(i + AHEAD, high - 1)])
            add_scaled(np.float32(1) / np.float32(high - low), row(weight, one), mean)
            add_scaled(scales[one], row(weight, one), center)
            biases[c] += bias[one] / np.float32(high - low)
        for i in range(low, high):
            squares += squared_distance(row(weight, members[i]), mean)
        spreads[c] = reach * np.sqrt(squares / np.float32(max(1, high - low)))
        length = np.sqrt(dot(center, center))
        if length > 0:
            centers[c] = center / length


@kernel
def keep_best(one, value, best, values, kept):
    """Insert a candidate into the sorted list of the best candidates, and return the new length of the list.

    `best` and `values`, [most], have the `kept` best candidates and their values, the largest first. The caller checks
    that there is room, or that `value` is larger than the last value.
    """
    most = best.shape[0]
    place = min(kept, most - 1)
    while place > 0 and values[place - 1] < value:
        values[place], best[place] = values[place - 1], best[place - 1]
        place -= 1
    values[place], best[place] = value, one
    return min(kept + 1, most)


@kernel
def is_among(one, some, count):
    """Return whether `one` is among the first `count` entries of `some`."""
    found = False
    for i in range(count):
        found = found or some[i] == one
    return found


@kernel
def largest_by_lane(scores, lanes):
    """Compute the largest score of each lane, `lanes` [LANES]."""
    lanes[:] = -np.inf
    for low in range(0, scores.shape[0], LANES):
        some = between(scores, low, min(low + LANES, scores.shape[0]))
        for j in range(some.shape[0]):
            lanes[j] = max(lanes[j], some[j])


@kernel
def add_up(products, scale, scales, length, spreads, biases, scores):
    """Compute the score of each cluster for one example: the logit of its mean, plus `length` times its spread.

    `length` is the norm of the hidden vector. `products * scale * scales` are its products with the means. Arrays are
    [clusters].
    """
    for c in range(products.shape[0]):
        scores[c] = np.float32(products[c]) * scale * scales[c] + length * spreads[c] + biases[c]


@kernel
def best_clusters(part, parts, hidden, products, scales, cluster_scales, spreads, biases, best):
    """Find the clusters with the highest scores for each example, `best` [examples, most], the best first.

    `products` [examples, clusters], times `scales` [examples] and `cluster_scales` [clusters], are the products of the
    hidden vectors with the cluster means. They are float32, or int32 if they were computed in 8 bits.

    The limit is the `most`-th largest maximum of a lane. Only lanes that reach it have one of the best scores.
    """
    examples, clusters = products.shape
    most = best.shape[1]
    values, lanes, places = np.empty(most, np.float32), np.empty(LANES, np.float32), np.empty(most, np.int64)
    mine = np.empty(clusters, np.float32)
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        vector, own = row(hidden, e), row(best, e)
        length = np.float32(np.sqrt(dot(vector, vector)))
        add_up(row(products, e), scales[e], cluster_scales, length, spreads, biases, mine)
        kept = 0
        if most <= LANES < clusters:
            largest_by_lane(mine, lanes)
            for j in range(LANES):
                if kept < most or lanes[j] > values[most - 1]:
                    kept = keep_best(j, lanes[j], places, values, kept)
            kept, limit = 0, values[most - 1]
            for j in range(LANES):
                if lanes[j] >= limit:
                    for c in range(j, clusters, LANES):
                        if mine[c] >= limit and (kept < most or mine[c] > values[most - 1]):
                            kept = keep_best(c, mine[c], own, values, kept)
        if kept < most:  # few clusters, or scores that are NaN
            kept = 0
            for c in range(clusters):
                if kept < most or mine[c] > values[most - 1]:
                    kept = keep_best(c, mine[c], own, values, kept)


@kernel
def take_members(part, parts, best, begins, members, most, starts, rows, counts, seen, mark, seed):
    """Add to each example up to `most` rows of its best clusters, `best` [examples, clusters].

    If only a part of the last cluster fits, it is a section from a random position.
    """
    mine = seen[part]
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        at, end = starts[e] + counts[e], starts[e] + counts[e] + most
        mark_taken(rows[starts[e] : at], mine, mark + e)
        for c in best[e]:
            size = begins[c + 1] - begins[c]
            offset = 0
            if size > end - at:
                offset = below(
                    next_state(np.uint64(seed) + np.uint64(e) * np.uint64(0xD1342543DE82EF95)), size
                )
            for i in range(size):
                row = members[begins[c] + (offset + i) % size]
                if at < end and mine[row] != mark + e:
                    mine[row] = mark + e
                    rows[at] = row
                    at += 1
            if at == end:
                break
        counts[e] = at - starts[e]


@kernel
def ask_for(cluster, begins, rounded):
    """Prefetch the rows of all members of a cluster."""
    for i in range(begins[cluster], begins[cluster + 1]):
        prefetch_row(rounded, i)


@kernel
def most_promising(vector, clusters, begins, members, rounded, scales, biases, found, values):
    """Find the members of the given clusters with the largest logits by 8-bit rows, and return their number.

    `found` and `values`, [most], get the rows and their logits, the largest first. `rounded` [members, columns],
    `scales` and `biases` [members] are in the order of `members`. A row may be in several clusters, but is found once.
    """
    kept, most = 0, found.shape[0]
    ask_for(clusters[0], begins, rounded)
    for place in range(clusters.shape[0]):
        c = clusters[place]
        if place + 1 < clusters.shape[0]:
            ask_for(clusters[place + 1], begins, rounded)
        for i in range(begins[c], begins[c + 1]):
            logit = dot(vector, row(rounded, i)) * scales[i] + biases[i]
            if (kept < most or logit > values[most - 1]) and not is_among(members[i], found, kept):
                kept = keep_best(members[i], logit, found, values, kept)
    return kept


@kernel
def best_of_clusters(
    part, parts, hidden, products, scales, cluster_scales, spreads, cluster_biases, clusters, begins, members, rounded,
    row_scales, biases, weight, bias, best, values,
):  # fmt: skip
    """Call `best_clusters`, then `best_members` with these clusters."""
    best_clusters(part, parts, hidden, products, scales, cluster_scales, spreads, cluster_biases, clusters)
    best_members(
        part, parts, hidden, clusters, begins, members, rounded, row_scales, biases, weight, bias, best, values,
    )  # fmt: skip


@kernel
def best_members(
    part, parts, hidden, clusters, begins, members, rounded, scales, biases, weight, bias, best, values
):  # fmt: skip
    """Find the rows with the largest logits in each example's clusters, the best first.

    Candidates are found with 8-bit rows (see `most_promising`), and then scored with `weight`. `best` and `values`,
    [examples, most], get the rows and logits; -1 and -inf if there are fewer.
    """
    examples, most = hidden.shape[0], best.shape[1]
    found, guesses = np.empty(most + SPARE, np.int32), np.empty(most + SPARE, np.float32)
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        vector, own, own_values, kept = row(hidden, e), row(best, e), row(values, e), 0
        own[:] = -1
        own_values[:] = -np.inf
        count = most_promising(
            vector, row(clusters, e), begins, members, rounded, scales, biases, found, guesses
        )
        for i in range(count):
            prefetch_row(weight, found[i])
        for i in range(count):
            logit = dot(vector, row(weight, found[i])) + bias[found[i]]
            if kept < most or logit > own_values[most - 1]:
                kept = keep_best(found[i], logit, own, own_values, kept)
