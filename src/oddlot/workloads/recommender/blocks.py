"""Blocks of a log: items that were shown and not clicked, followed by clicked ones. Split and thresholds."""

from dataclasses import dataclass
from math import ceil, floor, inf

import numpy as np
from numpy.typing import NDArray

from oddlot.core.support.errors import UsageError
from oddlot.workloads.recommender.click_log import ClickLog


@dataclass(frozen=True)
class Blocks:
    """The blocks of a log, sorted by user and time. Their rows follow each other: negatives, then clicks."""

    users: NDArray[np.int64]
    """Index of the user of each block, [blocks]."""
    starts: NDArray[np.int64]
    """First row of each block, [blocks]."""
    negatives: NDArray[np.int64]
    """Number of items that were not clicked, [blocks]. 0 if the log has none."""
    clicks: NDArray[np.int64]
    """Number of clicked items, [blocks]."""

    @property
    def ends(self) -> NDArray[np.int64]:
        """Row after the last one of each block, [blocks]."""
        return self.starts + self.negatives + self.clicks

    def counts(self, users: int) -> NDArray[np.int64]:
        """Return the number of blocks of each user, [users]."""
        return np.bincount(self.users, minlength=users)


def blocks_of(log: ClickLog) -> Blocks:
    """Return the blocks of a log.

    A block is a maximal run of items that were not clicked, followed by a maximal run of clicks. Clicks before the
    first item that was not clicked, and items after the last click, are in no block. In a log without negatives, the
    clicks of a user at the same time are a block.
    """
    if not len(log):
        return Blocks(*(np.zeros(0, np.int64) for _ in range(4)))
    is_new_user = np.diff(log.users, prepend=-1) != 0
    if not log.has_negatives:
        starts = np.flatnonzero(is_new_user | (np.diff(log.times, prepend=0.0) != 0))
        sizes = np.diff(starts, append=len(log))
        return Blocks(log.users[starts], starts, np.zeros_like(sizes), sizes)
    starts = np.flatnonzero(is_new_user | (np.diff(log.clicked, prepend=False) != 0))
    sizes = np.diff(starts, append=len(log))
    has_clicks = log.clicked[starts]
    first = np.flatnonzero(~has_clicks[:-1] & has_clicks[1:] & ~is_new_user[starts[1:]])
    return Blocks(log.users[starts[first]], starts[first], sizes[first], sizes[first + 1])


@dataclass(frozen=True)
class Split:
    """The last block of each user in time is the test. Users with a single block have no test."""

    train: ClickLog
    """Rows before the test block. All rows of users without a test."""
    test: ClickLog
    """Rows of the test blocks. Rows after them are left out."""
    unseen_users: int
    """Number of users with a single block: their last block has no earlier one to learn from. They are in `train`."""
    unseen_items: int
    """Number of items that only the test has."""


def split(log: ClickLog) -> Split:
    """Return training and test rows. Raise UsageError if no user has two blocks."""
    blocks = blocks_of(log)
    counts = blocks.counts(len(log.user_ids))
    last = np.flatnonzero(np.diff(blocks.users, append=-1) != 0)
    last = last[counts[blocks.users[last]] > 1]
    if not len(last):
        message = f"no user has two blocks: the log has {len(log):,} rows and {len(blocks.users):,} blocks"
        raise UsageError(message, "no_test_blocks", rows=len(log), blocks=len(blocks.users))
    begin = np.full(len(log.user_ids), len(log))
    end = begin.copy()
    begin[blocks.users[last]], end[blocks.users[last]] = blocks.starts[last], blocks.ends[last]
    rows = np.arange(len(log))
    is_train = rows < begin[log.users]
    is_test = ~is_train & (rows < end[log.users])
    train, test = log.rows(is_train), log.rows(is_test)
    unseen = np.setdiff1d(test.items, train.items)
    return Split(train, test, int((counts == 1).sum()), len(unseen))


@dataclass(frozen=True)
class Thresholds:
    """Smallest and largest number of training blocks of a user that counts, b and B of SAROS."""

    low: float = 0
    high: float = inf

    def keeps(self, counts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether users with these numbers of blocks count."""
        return (self.low <= counts) & (counts <= self.high)


def thresholds_of(log: ClickLog, low: float, high: float, until: float | None = None) -> Thresholds:
    """Return the percentiles `low` and `high` of the numbers of blocks of the users with a block.

    With `until`, only blocks that end before this time count, and the numbers are scaled to the time of the complete
    log, from its first to its last row. Raise UsageError if this part has no blocks.
    """
    blocks, scale = blocks_of(log), 1.0
    users = blocks.users
    if until is not None:
        first, last = float(log.times.min()), float(log.times.max())
        users = users[log.times[blocks.ends - 1] < until]
        scale = (last - first) / (until - first) if until > first else 1.0
        scale = max(scale, 1.0)
    counts = np.bincount(users)
    counts = counts[counts > 0]
    if not len(counts):
        message = f"the log has no complete block before {until}: choose a later time for thresholds_from"
        raise UsageError(message, "no_blocks_for_thresholds", "thresholds_from", until=until)
    percentiles = np.percentile(counts, [low, high]) * scale
    return Thresholds(floor(percentiles[0]), ceil(percentiles[1]))
