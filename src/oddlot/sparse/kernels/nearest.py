"""The largest scores in each row of a matrix."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.prefetch import AHEAD, prefetch_row
from oddlot.sparse.kernels.views import between, row

TOGETHER = 32
"""Number of scores that are compared at once with the largest score so far."""


@kernel
def any_above(values, limit):
    """Return whether a value is above `limit`.

    Counting in float32, the dtype of the values, vectorizes.
    """
    count = np.float32(0)
    for i in range(values.shape[0]):
        count += np.float32(1) if values[i] > limit else np.float32(0)
    return count > 0


@kernel
def place_of_largest(values):
    """Return the index of the largest value. Of equal values, return the first index."""
    place, largest = 0, np.float32(-np.inf)
    for low in range(0, values.shape[0], TOGETHER):
        high = min(low + TOGETHER, values.shape[0])
        if any_above(between(values, low, high), largest):
            for i in range(low, high):
                if values[i] > largest:
                    place, largest = i, values[i]
    return place


@kernel
def largest(part, parts, scores, places):
    """Compute the index of the largest score in each row: `scores` is [rows, columns], and `places` is [rows]."""
    rows = scores.shape[0]
    for i in range(rows * part // parts, rows * (part + 1) // parts):
        places[i] = place_of_largest(row(scores, i))


@kernel
def copy(numbers, to):
    """Copy `numbers` to `to`, both [columns]."""
    for i in range(numbers.shape[0]):
        to[i] = numbers[i]


@kernel
def gather(part, parts, members, matrix, out):
    """Copy rows of a matrix: `out[i] = matrix[members[i]]`."""
    low, high = members.shape[0] * part // parts, members.shape[0] * (part + 1) // parts
    for i in range(low, high):
        prefetch_row(matrix, members[min(i + AHEAD, high - 1)])
        copy(row(matrix, members[i]), row(out, i))


@kernel
def name_largest(part, parts, scores, groups, widths, names, members, found):
    """Find the names of the largest scores of each member, `found` [wanted, all members], the largest first.

    Row i of `scores` belongs to `members[i]` in group `groups[i]`. Its first `widths[group]` scores have the names
    `names[group]`. The largest scores are overwritten with -inf.
    """
    rows = members.shape[0]
    for i in range(rows * part // parts, rows * (part + 1) // parts):
        group = groups[i]
        mine = between(row(scores, i), 0, widths[group])
        for turn in range(found.shape[0]):
            place = place_of_largest(mine)
            found[turn, members[i]] = names[group, place]
            mine[place] = -np.inf
