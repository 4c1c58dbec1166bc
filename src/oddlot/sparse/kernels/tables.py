"""Hash tables as flat arrays: for each table, the rows sorted by code, and the start of each code."""

import numpy as np

from oddlot.sparse.kernels.jit import kernel
from oddlot.sparse.kernels.random_numbers import below, next_state
from oddlot.sparse.kernels.row_selection import mark_taken


@kernel
def sort_by_code(part, parts, codes, begins, rows):
    """Sort vectors by their code in each table.

    The vectors with code c in table l are `rows[l, begins[l, c]:begins[l, c + 1]]`, in ascending order. `codes` and
    `rows` are [tables, vectors], and `begins` is [tables, number of codes + 1].
    """
    tables, vectors = codes.shape
    for table in range(tables * part // parts, tables * (part + 1) // parts):
        begin, code = begins[table], codes[table]
        begin[:] = 0
        for i in range(vectors):
            begin[code[i] + 1] += 1
        for c in range(begin.shape[0] - 1):
            begin[c + 1] += begin[c]
        for i in range(vectors):
            rows[table, begin[code[i]]] = i
            begin[code[i]] += 1
        for c in range(begin.shape[0] - 1, 0, -1):
            begin[c] = begin[c - 1]
        begin[0] = 0


@kernel
def mark_active(part, parts, starts, counts, rows, changed):
    """Set `changed[row]`, [out_features], for each row that is in an active set."""
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        for slot in range(starts[e], starts[e] + counts[e]):
            changed[rows[slot]] = True


@kernel
def take_found(
    part, parts, codes, begins, members, most, most_of_bucket, starts, rows, counts, seen, mark, seed
):  # fmt: skip
    """Add to each example up to `most` rows that have the example's code in a table.

    `codes` is [tables, examples]. `begins` and `members` are from `sort_by_code`. Each example starts with a random
    table. A bucket with more than `most_of_bucket` rows contributes a section from a random position, so all its rows
    are equally likely.
    """
    tables = codes.shape[0]
    mine = seen[part]
    examples = counts.shape[0]
    for e in range(examples * part // parts, examples * (part + 1) // parts):
        state = next_state(np.uint64(seed) + np.uint64(e) * np.uint64(0xD1342543DE82EF95))
        at, end = starts[e] + counts[e], starts[e] + counts[e] + most
        mark_taken(rows[starts[e] : at], mine, mark + e)
        first = below(state, tables)
        for turn in range(tables):
            table = (first + turn) % tables
            code = codes[table, e]
            low, size = begins[table, code], begins[table, code + 1] - begins[table, code]
            state = next_state(state)
            offset = below(state, size) if size > most_of_bucket else 0
            for j in range(min(size, most_of_bucket)):
                row = members[table, low + (offset + j) % size]
                if at < end and mine[row] != mark + e:
                    mine[row] = mark + e
                    rows[at] = row
                    at += 1
            if at == end:
                break
        counts[e] = at - starts[e]
