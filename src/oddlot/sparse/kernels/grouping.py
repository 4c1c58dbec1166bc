"""Pairs (row, example), sorted by row, so that each row is read once and belongs to one thread.

Two passes: into buckets of neighbouring rows, then by counting within each bucket, which fits a cache.
"""

import numpy as np

from oddlot.sparse.kernels.jit import kernel


@kernel
def count_pairs(part, parts, starts, counts, rows, shift, positions):
    """`positions[part, b]`: how many pairs of this part's examples have a row of bucket b, rows `b << shift` on."""
    positions[part, :] = 0
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        for slot in range(starts[e], starts[e] + counts[e]):
            positions[part, rows[slot] >> shift] += 1


@kernel
def place_pairs(positions, bucket_starts):
    """Counts become positions: bucket by bucket, and within each in the order of the parts."""
    at = 0
    for bucket in range(positions.shape[1]):
        bucket_starts[bucket] = at
        for part in range(positions.shape[0]):
            count = positions[part, bucket]
            positions[part, bucket] = at
            at += count
    bucket_starts[positions.shape[1]] = at


@kernel
def scatter_pairs(part, parts, starts, counts, rows, shift, positions, row_of, example_of, slot_of):
    """Every pair goes to its bucket: its row, its example and its slot, where `rows` has the row."""
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        for slot in range(starts[e], starts[e] + counts[e]):
            row = rows[slot]
            at = positions[part, row >> shift]
            positions[part, row >> shift] = at + 1
            row_of[at] = row
            example_of[at] = e
            slot_of[at] = slot


@kernel
def sort_pairs(part, bounds, bucket_starts, shift, row_of, example_of, slot_of, row_by, example_by, slot_by):
    """Within the buckets from `bounds[part]` on: by row, and of one row in the order of examples."""
    width = 1 << shift
    places = np.zeros(width + 1, np.int32)
    for bucket in range(bounds[part], bounds[part + 1]):
        low, high = bucket_starts[bucket], bucket_starts[bucket + 1]
        first = bucket << shift
        places[:] = 0
        for at in range(low, high):
            places[row_of[at] - first + 1] += 1
        for row in range(width):
            places[row + 1] += places[row]
        for at in range(low, high):
            row = row_of[at] - first
            to = low + places[row]
            places[row] += 1
            row_by[to] = row_of[at]
            example_by[to] = example_of[at]
            slot_by[to] = slot_of[at]


@kernel
def count_rows(part, bounds, bucket_starts, row_by, counts):
    """`counts[part]`: how many rows this part's pairs have."""
    counts[part] = 0
    for at in range(bucket_starts[bounds[part]], bucket_starts[bounds[part + 1]]):
        counts[part] += at == bucket_starts[bounds[part]] or row_by[at] != row_by[at - 1]
