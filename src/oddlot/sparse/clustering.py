"""Clusters of rows, kept up to date as the rows change: a hash that is learnt."""

from math import log2

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.kernels import clusters as kernels
from oddlot.sparse.kernels import halving, tables
from oddlot.sparse.threads import Crew

MOST_CLUSTERS = 1 << 13
"""all of which are scored for each example, and compared with each other at each update"""
BLOCK = 1 << 10
FIRST_HALVINGS = 3
"""rounds of two-means in each node the first time; later it begins with the halves that it had"""
SHARED_LEVELS = 6
"""of the tree; below, each thread has whole subtrees"""


class Clustering:
    """About `rows / each` clusters, but at most 8,192, of rows that point the same way, however many these are.

    They are the leaves of a balanced tree of two-means (as in Prabhu et al., "Parabel", WWW 2018), which begins with
    the halves of the last one, after `rounds` of k-means on unit vectors (Dhillon, Modha, 2001), in each of which a row
    may go to one of the `near` centers nearest to its own.
    """

    def __init__(self, each: int, rounds: int = 1, near: int = 32) -> None:
        self.each, self.rounds, self.near = each, rounds, near
        self.order = np.zeros(0, np.int32)
        """the rows, leaf by leaf"""

    def update(self, crew: Crew, weight: NDArray[np.float32], bias: NDArray[np.float32], seed: int) -> None:
        """Follow the rows; from the beginning, if these are others."""
        halvings, rows = 1, len(weight)
        if len(self.order) != rows:
            halvings = FIRST_HALVINGS
            self._begin(rows, weight.shape[1], seed)
        self.scales = np.empty(rows, np.float32)
        crew.share(kernels.measure_lengths, weight, self.scales)
        self._halve(crew, weight, halvings)
        self._gather(crew, weight, bias)
        for _ in range(self.rounds):
            own = self.begins[0], self.members[0]
            crew.share(kernels.assign, *own, weight, self.centers, self._near(), self.codes[0])
            self._gather(crew, weight, bias)

    def best(self, crew: Crew, hidden: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """The clusters whose mean logit is the largest, [examples, count], the best one first."""
        scores = torch.addmm(
            torch.from_numpy(self.mean_biases), torch.from_numpy(hidden), torch.from_numpy(self.means).T
        )
        best = np.zeros((len(hidden), min(count, len(self.means))), np.int64)
        crew.share(kernels.best_clusters, scores.numpy(), best)
        return best

    def _begin(self, rows: int, columns: int, seed: int) -> None:
        self.order = np.random.default_rng(seed).permutation(rows).astype(np.int32)
        self.depth = round(log2(min(MOST_CLUSTERS, max(1, rows / self.each))))
        count = 1 << self.depth
        self.codes, self.members = (np.empty((1, rows), np.int32) for _ in range(2))
        self.begins = np.empty((1, count + 1), np.int32)
        self.centers, self.means = (np.zeros((count, columns), np.float32) for _ in range(2))
        self.mean_biases = np.empty(count, np.float32)

    def _halve(self, crew: Crew, weight: NDArray[np.float32], rounds: int) -> None:
        """Halve the nodes of the tree anew, and make clusters of its leaves."""
        rows = len(weight)
        room = np.empty(rows, np.int32), weight, self.scales, np.empty(rows, np.float32)
        alone = min(self.depth, SHARED_LEVELS)
        for level in range(alone):
            crew.share(halving.grow, level, 1, self.order, *room, rounds)
        crew.share(halving.grow, alone, self.depth - alone, self.order, *room, rounds)
        ends = rows * np.arange(1, len(self.means) + 1) >> self.depth
        self.codes[0, self.order] = np.searchsorted(ends, np.arange(rows), "right")

    def _near(self) -> NDArray[np.int64]:
        """The nearest centers of every center."""
        centers = torch.from_numpy(self.centers)
        found = [
            (part @ centers.T).topk(min(self.near, len(centers))).indices
            for part in torch.split(centers, BLOCK)
        ]
        return torch.cat(found).numpy()

    def _gather(self, crew: Crew, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> None:
        """The members of every cluster, its center and its means."""
        crew.share(tables.sort_by_code, self.codes, self.begins, self.members)
        crew.share(
            kernels.average, self.begins[0], self.members[0], weight, bias, self.scales, self.centers, self.means,
            self.mean_biases,
        )  # fmt: skip
