"""Choice of the rows of the output layer for each example: its labels, and random draws."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.random_numbers import below, next_state

UNIT = np.float32(2.0**-24)
"""Spacing of uniform random numbers with 24 bits."""
# `seen[part, row]` is the mark of the last example that took the row, so marks are never cleared.


@kernel
def mark_taken(rows, mine, mark):
    """Mark the rows that an example already has, because other examples may have overwritten the marks."""
    for row in rows:
        mine[row] = mark


@kernel
def take_labels(part, parts, label_starts, label_rows, starts, rows, counts, seen, mark):
    """Write the distinct labels of each example to `rows`, and their number to `counts`.

    `label_starts` [examples + 1] and `label_rows` [labels] are the arrays of a CSR matrix.
    """
    mine = seen[part]
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        at = starts[e]
        for place in range(label_starts[e], label_starts[e + 1]):
            row = label_rows[place]
            if mine[row] != mark + e:
                mine[row] = mark + e
                rows[at] = row
                at += 1
        counts[e] = at - starts[e]


@kernel
def take_by_chance(
    part, parts, wanted, starts, rows, counts, log_weights, out_features, seen, mark, seed, group
):
    """Add `wanted` uniform draws to each example: rows that it does not have, or all of these if there are fewer.

    Each draw represents the number of rows not taken before, divided by the number of draws: the log Q correction of
    sampled softmax. `group` consecutive examples use the same random sequence, to reduce the number of computed
    rows.
    """
    mine = seen[part]
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        others = out_features - counts[e]
        missing = min(wanted, others)
        if missing <= 0:
            continue
        mark_taken(rows[starts[e] : starts[e] + counts[e]], mine, mark + e)
        state = next_state(np.uint64(seed) + np.uint64(e // group) * np.uint64(0xD1342543DE82EF95))
        at, end = starts[e] + counts[e], starts[e] + counts[e] + missing
        next_row = 0
        while at < end:
            state = next_state(state)
            row = below(state, out_features)
            if missing == others:
                row, next_row = next_row, next_row + 1
            if mine[row] != mark + e:
                mine[row] = mark + e
                rows[at] = row
                at += 1
        log_weights[starts[e] + counts[e] : end] = np.log(np.float32(others) / np.float32(missing))
        counts[e] += missing


@kernel
def take_shared(part, parts, shared, starts, rows, counts, log_weights, out_features, seen, mark):
    """Add the rows in `shared` to each example, unless it already has them. Weights are as in `take_by_chance`."""
    mine = seen[part]
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        others = out_features - counts[e]
        before = at = starts[e] + counts[e]
        mark_taken(rows[starts[e] : at], mine, mark + e)
        for row in shared:
            if mine[row] != mark + e:
                rows[at] = row
                at += 1
        counts[e] += at - before
        log_weights[before:at] = np.log(np.float32(others) / np.float32(max(1, at - before)))


@kernel
def make_alias(chances, accept, alias):
    """Fill an alias table for drawing row i with probability `chances[i]` (Walker, 1974; Vose, 1991).

    To draw, choose a row uniformly. Keep it with probability `accept[row]`, else use `alias[row]`. All arrays are
    [rows], and `chances` sum to 1.
    """
    count = chances.shape[0]
    poor, rich, scaled = np.empty(count, np.int32), np.empty(count, np.int32), chances * count
    poors = richs = 0
    for i in range(count):
        accept[i], alias[i] = 1, i
        if scaled[i] < 1:
            poor[poors] = i
            poors += 1
        else:
            rich[richs] = i
            richs += 1
    while poors > 0 and richs > 0:
        poors -= 1
        one, other = poor[poors], rich[richs - 1]
        accept[one], alias[one] = scaled[one], other
        scaled[other] -= 1 - scaled[one]
        if scaled[other] < 1:
            richs -= 1
            poor[poors] = other
            poors += 1


@kernel
def take_by_frequency(
    part, parts, draws, starts, rows, counts, log_weights, accept, alias, row_weights, seen, mark, seed, group
):
    """Add the distinct rows of `draws` draws from an alias table to each example, except those that it already has.

    Row i represents `exp(row_weights[i])` rows. `group` consecutive examples use the same random sequence, to
    reduce the number of computed rows.
    """
    mine = seen[part]
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        at = starts[e] + counts[e]
        mark_taken(rows[starts[e] : at], mine, mark + e)
        state = next_state(np.uint64(seed) + np.uint64(e // group) * np.uint64(0xD1342543DE82EF95))
        for _ in range(draws):
            state = next_state(state)
            row = below(state, accept.shape[0])
            state = next_state(state)
            if np.float32(state >> np.uint64(40)) * UNIT >= accept[row]:
                row = alias[row]
            if mine[row] != mark + e:
                mine[row] = mark + e
                rows[at], log_weights[at] = row, row_weights[row]
                at += 1
        counts[e] = at - starts[e]
