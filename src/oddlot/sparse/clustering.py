"""Clusters of rows with similar directions: a learned hash that is rebuilt as the rows change."""

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.assign_clusters import nearest, sort_by_group
from oddlot.sparse.kernels import clusters as kernels
from oddlot.sparse.kernels import tables
from oddlot.sparse.products import Product
from oddlot.sparse.threads import Crew

MAX_CLUSTERS = 1 << 13
"""Largest number of clusters. All are scored for each example."""
REACH = 0.15
"""Weight of a cluster's spread in its score, because the largest logit of a cluster is above the mean. 0.1, 0.15 and
0.2 all find more than 0."""


class Clustering:
    """About `rows / each` clusters, at most 8,192, from `rounds` of k-means on unit vectors (Dhillon, Modha, 2001).

    Each seed starts with different rows as centers, because starting with the previous centers finds less. A row is
    compared only with the centers of a few `groups`.
    """

    def __init__(self, each: int, rounds: int = 2, groups: int = 8) -> None:
        self.each, self.rounds, self.groups = each, rounds, groups
        self.codes = np.empty((1, 0), np.int32)

    def update(self, crew: Crew, weight: NDArray[np.float32], bias: NDArray[np.float32], seed: int) -> None:
        """Cluster the current rows."""
        rows, columns = weight.shape
        chance = np.random.default_rng(seed)
        if self.codes.shape[1] != rows:
            self._make_room(rows, columns, min(MAX_CLUSTERS, max(1, rows // self.each)))
        crew.share(kernels.measure_lengths, weight, self.scales)
        chosen = chance.choice(rows, len(self.centers), replace=False)
        self.centers[:] = weight[chosen] * self.scales[chosen, None]
        for _ in range(self.rounds):
            self.codes = nearest(crew, weight, self.centers, self.groups, chance)
            crew.share(tables.sort_by_code, self.codes, self.begins, self.members)
            crew.share(
                kernels.average, self.begins[0], self.members[0], weight, bias, self.scales, np.float32(REACH),
                self.centers, self.means, self.spreads, self.biases,
            )  # fmt: skip
        self.product = Product(crew, self.means)

    def spread(
        self, crew: Crew, weight: NDArray[np.float32], wanted: int, seed: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Assign each row to its `wanted` nearest clusters. Return the start of each cluster, and the members."""
        chance = np.random.default_rng(seed)
        found = nearest(crew, weight, self.centers, self.groups, chance, wanted)
        begins, members = sort_by_group(crew, found.reshape(-1), len(self.centers))
        return begins, members % len(weight)

    def best(self, crew: Crew, hidden: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """Return the clusters with the highest scores, [examples, count], the best one first."""
        best = self.room(len(hidden), count)
        with self.product.of(hidden) as (products, scales):
            crew.share(kernels.best_clusters, hidden, products, scales, *self.numbers, best)
        return best

    def room(self, examples: int, count: int) -> NDArray[np.int64]:
        """Return memory for the best clusters of these examples."""
        return np.zeros((examples, min(count, len(self.means))), np.int64)

    @property
    def numbers(self) -> tuple[NDArray[np.float32], ...]:
        """Factors and offsets of each cluster that convert products with its mean to scores."""
        return self.product.scales, self.spreads, self.biases

    def _make_room(self, rows: int, columns: int, count: int) -> None:
        self.members, self.scales = np.empty((1, rows), np.int32), np.empty(rows, np.float32)
        self.begins = np.empty((1, count + 1), np.int32)
        self.centers, self.means = (np.zeros((count, columns), np.float32) for _ in range(2))
        self.spreads, self.biases = (np.zeros(count, np.float32) for _ in range(2))
