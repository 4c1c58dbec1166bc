"""Numba kernels of sampled layers: functions of NumPy arrays, independent of modules and samplers.

A kernel with the arguments `part` and `parts` does part number `part` of the work. A crew of threads calls it once per
thread, and waits for all threads before the next kernel.

Arguments that several kernels share:

- `starts`, `counts`, [examples]: example e has the slots from `starts[e]` to before `starts[e] + counts[e]`.
- `rows`, [slots]: row of the output layer in each slot. Kernels that add rows to an example also increase `counts`.
- `log_weights`, [slots]: logarithm of the number of rows that the row in each slot represents.
- `seen`, [parts, out_features], and `mark`: `seen[part, row]` is `mark + e` if example e has the row.
- `row_by`, `example_by`, `slot_by`, [pairs]: row, example and slot of each pair, sorted by row.
- `bucket_starts`, [buckets + 1]: first pair of each bucket. A bucket contains neighboring rows.
- `bounds`, [chunks + 1]: first bucket of each chunk. A chunk is processed by one thread.
- `kind`, `first`, `second`, `how`: optimizer, its state and its numbers (see `row_operations`).
"""

INTERFACE = {
    "clusters": ("average", "best_clusters", "best_of_clusters", "measure_lengths", "take_members"),
    "hashing": ("draw_bins", "largest_in_bins", "pack_signs"),
    "input_layer": ("backward", "collect", "forward"),
    "nearest": ("gather", "largest", "name_largest"),
    "output_layer": ("backward", "catch_up_rows", "collect", "forward", "softmax"),
    "parsing": ("count_marks", "parse"),
    "rounding": ("round_rows",),
    "row_groups": ("count_pairs", "place_pairs", "scatter_pairs", "sort_pairs"),
    "row_operations": ("adam_rows",),
    "row_selection": ("make_alias", "take_by_chance", "take_by_frequency", "take_labels", "take_shared"),
    "tables": ("mark_active", "sort_by_code", "take_found"),
}
"""Kernels that the rest of the package calls, by module: the interface of any other implementation."""
