"""Which rows of the output are computed for an example: its labels, what was found, and some by chance."""

import numpy as np

from oddlot.sparse.kernels.chance import below, next_state
from oddlot.sparse.kernels.jit import kernel

UNIT = np.float32(2.0**-24)
"""between the numbers of 24 bits that a state's high bits are, as a share"""
# `seen[part, row]` holds the mark of the example that has taken the row last: nothing needs to be cleared.


@kernel
def mark_taken(rows, mine, mark):
    """What the example has taken before: other examples may have taken it since."""
    for row in rows:
        mine[row] = mark


@kernel
def take_labels(part, parts, label_starts, label_rows, starts, rows, counts, seen, mark):
    """Every example's labels come first, each once."""
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
    """Rows that are not there yet, all alike, until an example has its labels and `wanted` more, or all.

    Each stands for as many rows as there were, over those that were taken: sampled softmax's log Q. Examples of one
    `group`, which follow each other, draw the same rows, so that fewer are touched.
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
    """The same rows for every example, but its labels."""
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
    """A table to draw row i with `chances[i]`: any row which, with the chance `accept`, is the one, or else gives its
    alias (Walker, 1974, as by Vose, 1991)."""
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
    """Rows of so many draws from an alias table that are not there yet, each once; row i stands for
    `exp(row_weights[i])`.

    Examples of one `group`, which follow each other, draw the same rows, so that fewer are touched.
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
