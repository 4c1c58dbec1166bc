"""Tests of blocks, of the split by the last block, and of thresholds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from oddlot.core.support.errors import UsageError
from oddlot.workloads.recommender.blocks import Thresholds, blocks_of, split, thresholds_of
from oddlot.workloads.recommender.click_log import ClickLog
from tests.transcripts import raises


def log_of(*feedback: str, start: float = 0.0) -> ClickLog:
    """Return a log: for each user a text with `-` for shown and `+` for clicked items, at times 0, 1, 2, ..."""
    rows = [
        (user, f"{user}.{at}", start + at, one == "+")
        for user, text in enumerate(feedback)
        for at, one in enumerate(text)
    ]
    columns: Any = zip(*rows, strict=True)
    return ClickLog.of(*columns)


def blocks(log: ClickLog) -> list[tuple[int, int, int, int]]:
    found = blocks_of(log)
    columns = found.users, found.starts, found.negatives, found.clicks
    return [tuple(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def expected(feedback: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Return the blocks by a walk over the rows."""
    found, row = [], 0
    for user, text in enumerate(feedback):
        at = 0
        while at < len(text):
            first = at
            while at < len(text) and text[at] == "-":
                at += 1
            middle = at
            while at < len(text) and text[at] == "+":
                at += 1
            if middle > first and at > middle:
                found.append((user, row + first, middle - first, at - middle))
        row += len(text)
    return found


def test_block_has_negatives_and_then_clicks() -> None:
    assert blocks(log_of("+--++-+-", "+", "-+")) == [(0, 1, 2, 2), (0, 5, 1, 1), (1 + 1, 9, 1, 1)]


@given(st.lists(st.text("+-", min_size=1, max_size=12), min_size=1, max_size=6))
def test_blocks_are_those_of_a_walk(feedback: list[str]) -> None:
    if "-" in "".join(feedback):
        assert blocks(log_of(*feedback)) == expected(feedback)


def test_clicks_at_the_same_time_are_a_block_without_negatives() -> None:
    log = ClickLog.of(["a"] * 4 + ["b"], range(5), [1, 1, 2, 3, 3])
    assert blocks(log) == [(0, 0, 0, 2), (0, 2, 0, 1), (0, 3, 0, 1), (1, 4, 0, 1)]


def test_last_block_is_the_test() -> None:
    parts = split(log_of("+-+-++--", "-+", "-"))
    assert parts.train.item_ids[parts.train.items].tolist() == ["0.0", "0.1", "0.2", "1.0", "1.1", "2.0"]
    assert parts.test.item_ids[parts.test.items].tolist() == ["0.3", "0.4", "0.5"]
    assert (parts.unseen_users, parts.unseen_items) == (1, 3)


def test_log_without_two_blocks_is_rejected() -> None:
    with raises(UsageError, "no_test_blocks", rows=4, blocks=2):
        split(log_of("-+", "-+"))


def test_thresholds_are_percentiles_of_users_with_blocks() -> None:
    log = log_of(*("-+" * count for count in range(1, 102)), "-")
    assert thresholds_of(log, 5, 95) == Thresholds(6, 96)
    np.testing.assert_array_equal(Thresholds(2, 3).keeps(np.arange(5)), [0, 0, 1, 1, 0])


def test_thresholds_of_an_early_part_are_scaled() -> None:
    rows = [("a", at, 10.0 * at + which, which) for at in range(11) for which in (0, 1)]
    rows += [("bot", at, 60 + at / 100, at % 2) for at in range(2000)]
    columns: Any = zip(*rows, strict=True)
    log = ClickLog.of(*columns)
    assert thresholds_of(log, 0, 100, until=50.5) == Thresholds(10, 10)  # 5 blocks in half of the time
    assert thresholds_of(log, 0, 100).high == 1000
    with raises(UsageError, "no_blocks_for_thresholds", until=0.5):
        thresholds_of(log, 0, 100, until=0.5)


@pytest.mark.parametrize("feedback", [("--", "-"), ("++",)])
def test_log_may_have_no_blocks(feedback: tuple[str, ...]) -> None:
    assert blocks(log_of(*feedback)) == expected(feedback) or "-" not in "".join(feedback)
