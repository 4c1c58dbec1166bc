"""Sorting of (row, example) pairs by row, on any number of threads."""

from itertools import pairwise
from threading import Event, Timer

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from oddlot.sparse.pairs import Pairs
from oddlot.sparse.threads import Crew


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 3000), st.lists(st.integers(0, 30), max_size=20), st.integers(1, 4), st.integers(0, 9))
def test_pairs_are_sorted_by_row_and_then_by_example(
    rows: int, lengths: list[int], parts: int, seed: int
) -> None:
    counts = np.array(lengths, np.int64)
    starts = np.cumsum(counts) - counts
    of = np.random.default_rng(seed).integers(0, rows, counts.sum()).astype(np.int32)
    crew = Crew()
    crew.parts = parts
    pairs = Pairs(rows)
    for _ in range(2):  # the second time reuses buffers
        pairs.group(crew, starts, counts, of)
        bounds, bucket_starts, row_by, example_by, slot_by = pairs.sorted
        order = np.argsort(of, kind="stable")
        assert row_by[: len(of)].tolist() == of[order].tolist()
        assert slot_by[: len(of)].tolist() == order.tolist()
        assert example_by[: len(of)].tolist() == np.repeat(np.arange(len(counts)), counts)[order].tolist()
        assert (bounds[0], bucket_starts[bounds[-1]]) == (0, len(of))
        assert (np.diff(bounds) >= 0).all()
        for chunk, (low, high) in enumerate(pairwise(bucket_starts[bounds])):
            assert pairs.rows_of[chunk] == len(np.unique(row_by[low:high]))
        assert pairs.touched == len(np.unique(of))


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_crew_finishes_all_parts_before_it_raises(bad: int) -> None:
    """The error is raised only after slow parts have ended."""
    ended, goes_on = set[int](), Event()

    def work(part: int, parts: int) -> None:
        if part == bad:
            raise ZeroDivisionError
        if part:
            goes_on.wait()
        ended.add(part)

    later = Timer(0.05, goes_on.set)
    later.start()
    with pytest.raises(ZeroDivisionError):
        Crew(4).share(work)
    assert ended == {0, 1, 2, 3} - {bad}
    later.join()
