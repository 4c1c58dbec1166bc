"""Users as samples: batches of training rows, and of test blocks with the items seen before."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oddlot.workloads.recommender.blocks import Blocks, Split, blocks_of
from oddlot.workloads.recommender.click_log import ClickLog

Batch = dict[str, Tensor]
"""A batch of users. Rows of the log follow each other, user by user, without padding:

- `users` [n]: index of each user. `counts` [n]: number of training blocks.
- `items` [rows], `clicked` [rows]: item of each row, and whether it was clicked.
- `owners` [rows]: position in the batch of the row's user.
- `blocks` [blocks, 3]: first row of each block, number of negatives, number of clicks.
- `windows` [windows, context]: clicked items of a user in order, behind a first -1, and padded with -1.
- `places` [rows]: index in `windows`, flattened, of the last click before the row.

A test batch also has `seen_items` and `seen_owners` [seen], and padded with -1 and 0, `test_items` and `test_clicked`
[n, most]: the rows of the test block with items that training has; and `history` [n]: the place of the last click.
"""


def _ranges(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of all ranges, one after the other."""
    ends = np.cumsum(sizes)
    return np.arange(int(sizes.sum())) + np.repeat(starts - ends + sizes, sizes)


@dataclass(frozen=True)
class UserRows:
    """A log and its blocks, by user."""

    log: ClickLog

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks of the log."""
        return blocks_of(self.log)

    @cached_property
    def _starts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First row and first block of each user, with the total at the end."""
        users = np.arange(len(self.log.user_ids) + 1)
        return np.searchsorted(self.log.users, users), np.searchsorted(self.blocks.users, users)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of blocks of each user."""
        return self.blocks.counts(len(self.log.user_ids))

    def batch(self, users: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return the rows and the blocks of users, as a `Batch` without `windows` and `places`."""
        row_starts, block_starts = self._starts
        first, sizes = row_starts[users], np.diff(row_starts)[users]
        rows = _ranges(first, sizes)
        some = _ranges(block_starts[users], np.diff(block_starts)[users])
        shift = np.repeat(np.cumsum(sizes) - sizes - first, np.diff(block_starts)[users])
        columns = self.blocks.starts[some] + shift, self.blocks.negatives[some], self.blocks.clicks[some]
        return {
            "users": users,
            "items": self.log.items[rows],
            "clicked": self.log.clicked[rows],
            "owners": np.repeat(np.arange(len(users)), sizes),
            "blocks": np.stack(columns, 1),
        }


@dataclass(frozen=True)
class TrainUsers:
    """The users with a click in the training rows. A sample is a user with all rows and blocks."""

    rows: UserRows
    context: int
    """Number of places of a window. Longer histories have several windows, each with its own rows."""

    @cached_property
    def users(self) -> NDArray[np.int64]:
        """Indices of the users."""
        return np.unique(self.rows.log.users[self.rows.log.clicked])

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, index: int) -> Batch:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        users = self.users[np.asarray(indices, np.int64)]
        found = self.rows.batch(users)
        found["counts"] = self.rows.counts[users]
        owners, clicked = found["owners"], found["clicked"]
        clicks = np.bincount(owners[clicked], minlength=len(users))
        total = np.cumsum(clicked) - clicked
        before = total - (np.cumsum(clicks) - clicks)[owners]  # clicks of the user before the row
        windows = clicks // self.context + 1
        first = np.cumsum(windows) - windows
        found["places"] = self.context * first[owners] + before
        table = np.full(int(windows.sum()) * self.context, -1)
        table[found["places"][clicked] + 1] = found["items"][clicked]
        found["windows"] = table.reshape(-1, self.context)
        return _tensors(found)


@dataclass(frozen=True)
class HeldOutUsers:
    """The users with a test block that has a clicked item which training has, and which is new for the user."""

    train: UserRows
    test: UserRows
    context: int

    @classmethod
    def of(cls, parts: Split, context: int) -> "HeldOutUsers":
        """Return the test users of a split, without test items that the user has seen or that training lacks."""
        train, test = parts.train, parts.test
        width = len(train.item_ids)
        is_seen = np.isin(test.users * width + test.items, train.users * width + train.items)
        kept = test.rows(~is_seen & np.isin(test.items, train.items))
        return cls(UserRows(train), UserRows(kept), context)

    @cached_property
    def users(self) -> NDArray[np.int64]:
        """Indices of the users."""
        return np.unique(self.test.log.users[self.test.log.clicked])

    @cached_property
    def with_users(self) -> dict[int, int]:
        """Sample of each user."""
        return {int(user): at for at, user in enumerate(self.users)}

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, index: int) -> Batch:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        return self.of_users(self.users[np.asarray(indices, np.int64)])

    def of_users(self, users: NDArray[np.int64]) -> Batch:
        """Return the batch of any users, with a test block or without."""
        found, seen = self.test.batch(users), self.train.batch(users)
        found["counts"] = self.train.counts[users]
        found |= {"seen_items": seen["items"], "seen_owners": seen["owners"]}
        history, owners = seen["items"][seen["clicked"]], seen["owners"][seen["clicked"]]
        clicks = np.bincount(owners, minlength=len(users))
        kept = np.minimum(clicks, self.context - 1)
        newest = _ranges(np.cumsum(clicks) - kept, kept)
        windows = np.full((len(users), self.context), -1)
        windows[np.repeat(np.arange(len(users)), kept), _ranges(np.ones_like(kept), kept)] = history[newest]
        places = np.arange(len(users)) * self.context + kept
        found |= {"windows": windows, "places": places[found["owners"]], "history": places}
        sizes = np.bincount(found["owners"], minlength=len(users))
        inside = np.arange(max(int(sizes.max(initial=1)), 1)) < sizes[:, None]
        for name in ("items", "clicked"):
            found[f"test_{name}"] = np.full(inside.shape, -1 if name == "items" else 0)
            found[f"test_{name}"][inside] = found[name]
        return _tensors(found)


def _tensors(arrays: dict[str, NDArray[np.int64]]) -> Batch:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
