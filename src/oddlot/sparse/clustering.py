"""Clusters of rows that point the same way: a hash that is learnt, made anew as the rows change."""

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.assign_clusters import nearest, sort_by_group
from oddlot.sparse.kernels import clusters as kernels
from oddlot.sparse.kernels import tables
from oddlot.sparse.products import Product
from oddlot.sparse.threads import Crew

MAX_CLUSTERS = 1 << 13
"""all of which are scored for each example"""
REACH = 0.15
"""of the lengths of a hidden vector and of a cluster's spread, so much is added to its mean logit: the largest of some
logits, which is looked for, is above their mean (of 0.1, 0.15 and 0.2 all find more than 0 does)"""


class Clustering:
    """About `rows / each` clusters, but at most 8,192, by `rounds` of k-means on unit vectors (Dhillon, Modha, 2001).

    With each seed it begins with other rows as centers: beginning with the last centers finds less, as they stay where
    they once were. A row is compared with the centers of a few `groups` of them alone.
    """

    def __init__(self, each: int, rounds: int = 2, groups: int = 8) -> None:
        self.each, self.rounds, self.groups = each, rounds, groups
        self.codes = np.empty((1, 0), np.int32)

    def update(self, crew: Crew, weight: NDArray[np.float32], bias: NDArray[np.float32], seed: int) -> None:
        """Cluster the rows as they are now."""
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
        """Each row in so many clusters, those whose centers it points to most: where each cluster begins among the
        members, and these."""
        chance = np.random.default_rng(seed)
        found = nearest(crew, weight, self.centers, self.groups, chance, wanted)
        begins, members = sort_by_group(crew, found.reshape(-1), len(self.centers))
        return begins, members % len(weight)

    def best(self, crew: Crew, hidden: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """The clusters that promise the largest logits, [examples, count], the best one first."""
        best = self.room(len(hidden), count)
        with self.product.of(hidden) as (products, scales):
            crew.share(kernels.best_clusters, hidden, products, scales, *self.numbers, best)
        return best

    def room(self, examples: int, count: int) -> NDArray[np.int64]:
        """For the best clusters of so many examples."""
        return np.zeros((examples, min(count, len(self.means))), np.int64)

    @property
    def numbers(self) -> tuple[NDArray[np.float32], ...]:
        """Of each cluster, by which products with its mean become what it promises."""
        return self.product.scales, self.spreads, self.biases

    def _make_room(self, rows: int, columns: int, count: int) -> None:
        self.members, self.scales = np.empty((1, rows), np.int32), np.empty(rows, np.float32)
        self.begins = np.empty((1, count + 1), np.int32)
        self.centers, self.means = (np.zeros((count, columns), np.float32) for _ in range(2))
        self.spreads, self.biases = (np.zeros(count, np.float32) for _ in range(2))
