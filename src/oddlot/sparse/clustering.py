"""Nearest centers, and clusters of rows with similar directions: a learned hash that is rebuilt as rows change."""

from collections.abc import Sequence
from math import isqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from oddlot.sparse.kernels import clusters as kernels, nearest as nearest_kernels, tables
from oddlot.sparse.products import Product
from oddlot.sparse.threads import Crew

GROUPING_ROUNDS = 2
SCORES = 1 << 21
"""Number of scores to compute at once (8 MB)."""


def nearest(
    crew: Crew,
    rows: NDArray[np.float32],
    centers: NDArray[np.float32],
    few: int,
    chance: np.random.Generator,
    wanted: int = 1,
) -> NDArray[np.int32]:
    """Return the `wanted` centers with the largest inner products for each row, [wanted, rows], largest first.

    Centers are grouped by k-means. The number of groups is about the number of centers per group. A row is compared
    only with the centers of the `few` groups nearest to its own, with one matrix product for all rows of a group. If
    these groups have fewer than `wanted` centers, a center is repeated.
    """
    heads, groups = _grouped(crew, torch.from_numpy(centers), chance)
    begins, members = sort_by_group(crew, groups, len(heads))
    parts = np.split(centers[members], begins[1:-1])
    near = _near(heads, few, begins)
    names, widths = _names(near, begins, members)
    row_begins, row_members = sort_by_group(crew, _largest(crew, torch.from_numpy(rows), heads), len(heads))
    found, block = np.empty((wanted, len(rows)), np.int32), max(1, SCORES // names.shape[1])
    gathered, scores = (heads.new_empty(block, columns) for columns in (rows.shape[1], names.shape[1]))
    for low in range(0, len(rows), block):
        some = row_members[low : low + block]
        crew.share(nearest_kernels.gather, some, rows, gathered.numpy())
        ends = np.clip(row_begins - low, 0, len(some))
        for group in np.flatnonzero(np.diff(ends)):
            mine, theirs = slice(*ends[group : group + 2]), np.concatenate([parts[i] for i in near[group]])
            torch.mm(gathered[mine], torch.from_numpy(theirs).T, out=scores[mine, : widths[group]])
        which = np.repeat(np.arange(len(heads)), np.diff(ends))
        crew.share(nearest_kernels.name_largest, scores.numpy(), which, widths, names, some, found)
    return found


def _near(heads: Tensor, few: int, begins: NDArray[np.int32]) -> list[Sequence[int]]:
    """Return, for each group, the `few` nearest groups, or all groups if these have no centers."""
    sizes, everywhere = np.diff(begins), range(len(heads))
    near = (heads @ heads.T).topk(min(few, len(heads))).indices.tolist()
    return [some if sizes[some].any() else everywhere for some in near]


def _names(
    near: list[Sequence[int]], begins: NDArray[np.int32], members: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the centers to compare with the rows of each group, [groups, most], and their number, [groups]."""
    parts = np.split(members, begins[1:-1])
    called = [np.concatenate([parts[i] for i in some]) for some in near]
    widths = np.array([len(one) for one in called])
    names = np.zeros((len(near), widths.max()), np.int32)
    for one, row in zip(called, names, strict=True):
        row[: len(one)] = one
    return names, widths


def _grouped(crew: Crew, centers: Tensor, chance: np.random.Generator) -> tuple[Tensor, NDArray[np.int32]]:
    """Return the heads of the groups of centers, [groups, columns], and the group of each center."""
    count = max(1, isqrt(len(centers)))
    heads = centers[torch.from_numpy(chance.choice(len(centers), count, replace=False))]
    units = normalize(centers)
    for _ in range(GROUPING_ROUNDS):
        groups = _largest(crew, units, heads)
        heads = normalize(torch.zeros_like(heads).index_add_(0, torch.from_numpy(groups), units))
    return heads, groups


def _largest(crew: Crew, rows: Tensor, heads: Tensor) -> NDArray[np.int32]:
    """Return the head with the largest inner product with each row."""
    found, block = np.empty(len(rows), np.int32), max(1, SCORES // len(heads))
    for low in range(0, len(rows), block):
        crew.share(
            nearest_kernels.largest, (rows[low : low + block] @ heads.T).numpy(), found[low : low + block]
        )
    return found


def sort_by_group(
    crew: Crew, groups: NDArray[np.int32], count: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Sort members by group. Return the start of each group, [count + 1], and the members."""
    begins, members = np.empty((1, count + 1), np.int32), np.empty((1, len(groups)), np.int32)
    crew.share(tables.sort_by_code, groups[None], begins, members)
    return begins[0], members[0]


MAX_CLUSTERS = 1 << 13
"""Largest number of clusters, because all are scored for each example."""
REACH = 0.15
"""Weight of a cluster's spread in its score, because the largest logit of a cluster is above the mean. 0.1, 0.15 and
0.2 all have a higher recall than 0."""


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
        """Return the clusters with the highest scores, [examples, count], in descending order."""
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
