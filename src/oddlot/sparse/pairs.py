"""The pairs (row, example) of a batch, sorted by row, in chunks that are distributed over threads."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oddlot.sparse.kernels import row_groups
from oddlot.sparse.threads import Crew

BUCKETS = 256
"""Approximate number of buckets. Their write positions fit into a core's cache."""
MIN_SHIFT = 6
ROW_IN_PAIRS = 8.0
"""Cost of a row relative to a pair. Weights and moments of a row are read and written once."""
PAIRS_EACH, MIN_CHUNKS, MAX_CHUNKS = 16, 4, 16
"""Approximate number of pairs per example in a chunk, and limits of the number of chunks. They limit the threads."""


def _room(count: int) -> NDArray[np.int32]:
    return np.empty(count, np.int32)


@dataclass
class Pairs:
    """Memory for the pairs of one batch. It grows as needed.

    Each row belongs to one chunk. Sums within a chunk, and then over all chunks, are the same with any number of
    threads.
    """

    matrix_rows: int
    bounds: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """First bucket of every chunk, and the end of the last chunk."""
    rows_of: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Number of different rows of every chunk."""
    bucket_starts: NDArray[np.int64] = field(init=False)
    by_bucket: list[NDArray[np.int32]] = field(default_factory=lambda: [_room(0)] * 3)
    by_row: list[NDArray[np.int32]] = field(default_factory=lambda: [_room(0)] * 3)
    """Row, example and slot of every pair."""

    def __post_init__(self) -> None:
        self.shift = max(MIN_SHIFT, int(np.ceil(np.log2(max(1, self.matrix_rows) / BUCKETS))))
        self.buckets = (self.matrix_rows >> self.shift) + 1
        self.bucket_starts = np.zeros(self.buckets + 1, np.int64)

    def group(
        self,
        crew: Crew,
        starts: NDArray[Any],
        counts: NDArray[Any],
        rows: NDArray[Any],
        chunks: int = MAX_CHUNKS,
    ) -> None:
        """Sort the pairs by row. Example e has `counts[e]` pairs, with rows from `rows[starts[e]]` on."""
        positions = np.empty((crew.parts, self.buckets), np.int64)
        crew.share(row_groups.count_pairs, starts, counts, rows, self.shift, positions)
        row_groups.place_pairs(positions, self.bucket_starts)
        if (pairs := int(self.bucket_starts[-1])) > len(self.by_row[0]):
            self.by_bucket = [_room(pairs) for _ in range(3)]
            self.by_row = [_room(pairs) for _ in range(3)]
        crew.share(row_groups.scatter_pairs, starts, counts, rows, self.shift, positions, *self.by_bucket)
        self.bounds = self._bounds(chunks)
        self.rows_of = np.empty(len(self.bounds) - 1, np.int64)
        crew.share(
            row_groups.sort_pairs, self.bounds, self.bucket_starts, self.shift, *self.by_bucket, *self.by_row,
            self.rows_of,
        )  # fmt: skip

    def _bounds(self, chunks: int) -> NDArray[np.int64]:
        """Return the first bucket of each chunk, [chunks + 1]. All chunks cost about the same.

        The cost of a bucket includes the expected number of its different rows, if its pairs have random rows.
        """
        pairs, width = np.diff(self.bucket_starts), 1 << self.shift
        costs = pairs + ROW_IN_PAIRS * width * -np.expm1(-pairs / width)
        until = np.cumsum(np.concatenate([[0.0], costs]))
        bounds: NDArray[np.int64] = np.searchsorted(until, np.arange(chunks + 1) * until[-1] / chunks)
        bounds[0], bounds[-1] = 0, self.buckets
        return bounds

    @property
    def touched(self) -> int:
        """Number of rows that have a pair."""
        return int(self.rows_of.sum())

    @property
    def places(self) -> NDArray[np.int64]:
        """Position of the first row of each chunk among the rows that have a pair."""
        return np.cumsum(self.rows_of) - self.rows_of

    @property
    def rows(self) -> NDArray[np.int32]:
        """The rows that have a pair, each once, in ascending order."""
        every = self.by_row[0][: self.bucket_starts[-1]]
        return every[np.flatnonzero(np.diff(every, prepend=-1))]

    @property
    def sorted(self) -> tuple[NDArray[Any], ...]:
        """Arguments of the kernels that process the pairs row by row."""
        return (self.bounds, self.bucket_starts, *self.by_row)


def chunks_for(pairs: int, examples: int) -> int:
    """Return the number of chunks for a batch.

    Each chunk has its own gradient of the hidden vectors. It should be small compared with the chunk's pairs.
    """
    wanted = pairs / (PAIRS_EACH * max(1, examples))
    return min(MAX_CHUNKS, max(MIN_CHUNKS, 1 << max(0, int(wanted).bit_length() - 1)))


def sparse_rows(rows: NDArray[np.int64], values: NDArray[np.float32], like: Tensor) -> Tensor:
    """Return the sparse gradient of `like`: `values` in these rows, and 0 in all others.

    Each row occurs once.
    """
    at = torch.from_numpy(rows)[None]
    return torch.sparse_coo_tensor(
        at, torch.from_numpy(values), like.shape, check_invariants=False, is_coalesced=True
    )
