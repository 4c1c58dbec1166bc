"""Sorting of the pairs (row, example) of a batch by row. Each row is then read once, by the thread of its chunk.

There are two passes: into buckets of neighboring rows, and then a counting sort of each bucket. A bucket fits into the
cache.
"""

import numpy as np

from oddlot.sparse.kernels.jit import kernel


@kernel
def count_pairs(part, parts, starts, counts, rows, shift, positions):
    """Count the pairs of this part's examples in each bucket, `positions` [parts, buckets].

    Bucket b has the rows from `b << shift` to before `(b + 1) << shift`.
    """
    positions[part, :] = 0
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        for slot in range(starts[e], starts[e] + counts[e]):
            positions[part, rows[slot] >> shift] += 1


@kernel
def place_pairs(positions, bucket_starts):
    """Convert the counts in `positions` to write positions: bucket by bucket, and within a bucket part by part.

    Also compute `bucket_starts`.
    """
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
    """Write the row, example and slot of each pair, [pairs], to the position of its bucket."""
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
    """Sort the pairs of one bucket by row, and return the number of different rows.

    The sort is stable, so pairs of the same row stay in the order of examples. `places`, [(1 << shift) + 1], is scratch
    memory.
    """
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
    """Sort the buckets of this part's chunks, and compute the number of different rows of each chunk, `rows_of`."""
    places, chunks = np.zeros((1 << shift) + 1, np.int32), rows_of.shape[0]
    for chunk in range(chunks * part // parts, chunks * (part + 1) // parts):
        rows_of[chunk] = 0
        for bucket in range(bounds[chunk], bounds[chunk + 1]):
            rows_of[chunk] += sort_bucket(
                bucket, bucket_starts, places, shift, row_of, example_of, slot_of, row_by, example_by, slot_by
            )
