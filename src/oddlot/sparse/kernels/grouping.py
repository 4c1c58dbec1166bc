"""Pairs (row, example), sorted by row, so that each row is read once and belongs to one chunk, and to its thread.

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
def sort_bucket(
    bucket, bucket_starts, places, shift, row_of, example_of, slot_of, row_by, example_by, slot_by
):
    """By row, and of one row in the order of examples; how many rows there are."""
    low, high, first = bucket_starts[bucket], bucket_starts[bucket + 1], bucket << shift
    found = 0
    places[:] = 0
    for at in range(low, high):
        places[row_of[at] - first + 1] += 1
    for row in range(1 << shift):
        found += places[row + 1] > 0
        places[row + 1] += places[row]
    for at in range(low, high):
        row = row_of[at] - first
        to = low + places[row]
        places[row] += 1
        row_by[to] = row_of[at]
        example_by[to] = example_of[at]
        slot_by[to] = slot_of[at]
    return found


@kernel
def sort_pairs(
    part,
    parts,
    bounds,
    bucket_starts,
    shift,
    row_of,
    example_of,
    slot_of,
    row_by,
    example_by,
    slot_by,
    rows_of,
):
    """Sort the buckets of this part's chunks, and count the rows of each."""
    places, chunks = np.zeros((1 << shift) + 1, np.int32), rows_of.shape[0]
    for chunk in range(chunks * part // parts, chunks * (part + 1) // parts):
        rows_of[chunk] = 0
        for bucket in range(bounds[chunk], bounds[chunk + 1]):
            rows_of[chunk] += sort_bucket(
                bucket, bucket_starts, places, shift, row_of, example_of, slot_of, row_by, example_by, slot_by
            )
