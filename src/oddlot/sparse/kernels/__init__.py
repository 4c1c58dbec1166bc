"""The compiled loops of sampled layers: functions of plain arrays, which know of no module and no sampler.

Those that have a `part` do that part of the work, of `parts`, so that a crew of threads calls them once a thread;
between two of them all wait for each other.
"""

INTERFACE = {
    "choosing": ("make_alias", "take_by_chance", "take_by_frequency", "take_labels", "take_shared"),
    "clusters": ("average", "best_clusters", "best_of_clusters", "measure_lengths", "take_members"),
    "grouping": ("count_pairs", "place_pairs", "scatter_pairs", "sort_pairs"),
    "hashing": ("draw_bins", "largest_in_bins", "pack_signs"),
    "input": ("backward", "collect", "forward"),
    "nearest": ("gather", "largest", "name_largest"),
    "output": ("backward", "catch_up_rows", "collect", "forward", "softmax"),
    "parsing": ("count_marks", "parse"),
    "rounding": ("round_rows",),
    "stepping": ("adam_rows",),
    "tables": ("mark_active", "sort_by_code", "take_found"),
}
"""All that the rest of the package calls, by module: what another compiled core in their place has to offer."""
