"""Clusters of rows that point the same way: a hash that is learnt, made anew as the rows change."""

from math import isqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from oddlot.sparse.kernels import clusters as kernels
from oddlot.sparse.kernels import tables
from oddlot.sparse.threads import Crew

MOST_CLUSTERS = 1 << 13
"""all of which are scored for each example"""
GROUPING_ROUNDS = 2
BLOCK = 1 << 10
"""rows that are compared with centers at once"""
REACH = 0.15
"""of the lengths of a hidden vector and of a cluster's spread, so much is added to its mean logit: the largest of some
logits, which is looked for, is above their mean (of 0.1, 0.15 and 0.2 all find more than 0 does)"""


class Clustering:
    """About `rows / each` clusters, but at most 8,192, by `rounds` of k-means on unit vectors (Dhillon, Modha, 2001).

    Each time it begins with other rows as centers: beginning with the last centers finds less, since centers stay where
    they once were. A row is compared with the centers of a few `groups` of them alone.
    """

    def __init__(self, each: int, rounds: int = 2, groups: int = 8) -> None:
        self.each, self.rounds, self.groups, self.times = each, rounds, groups, 0
        self.codes = np.empty((1, 0), np.int32)

    def update(self, crew: Crew, weight: NDArray[np.float32], bias: NDArray[np.float32], seed: int) -> None:
        """Cluster the rows as they are now."""
        rows, columns = weight.shape
        chance = np.random.default_rng([seed, self.times])
        self.times += 1
        if self.codes.shape[1] != rows:
            self._make_room(rows, columns, min(MOST_CLUSTERS, max(1, rows // self.each)))
        crew.share(kernels.measure_lengths, weight, self.scales)
        self.centers[:] = weight[chance.choice(rows, len(self.centers), replace=False)]
        for _ in range(self.rounds):
            near = nearest(torch.from_numpy(weight), torch.from_numpy(self.centers), self.groups, chance)
            self.codes[0] = near.numpy()
            crew.share(tables.sort_by_code, self.codes, self.begins, self.members)
            crew.share(
                kernels.average, self.begins[0], self.members[0], weight, bias, self.scales, np.float32(REACH),
                self.centers, self.means, self.mean_biases,
            )  # fmt: skip

    def best(self, crew: Crew, hidden: NDArray[np.float32], count: int) -> NDArray[np.int64]:
        """The clusters that promise the largest logits, [examples, count], the best one first."""
        own = torch.from_numpy(hidden)
        longer = torch.cat([own, own.norm(dim=1, keepdim=True)], 1)
        scores = torch.addmm(torch.from_numpy(self.mean_biases), longer, torch.from_numpy(self.means).T)
        best = np.zeros((len(hidden), min(count, len(self.means))), np.int64)
        crew.share(kernels.best_clusters, scores.numpy(), best)
        return best

    def _make_room(self, rows: int, columns: int, count: int) -> None:
        self.codes, self.members = (np.empty((1, rows), np.int32) for _ in range(2))
        self.begins, self.scales = np.empty((1, count + 1), np.int32), np.empty(rows, np.float32)
        self.centers, self.means = (np.zeros((count, n), np.float32) for n in (columns, columns + 1))
        self.mean_biases = np.empty(count, np.float32)


def nearest(rows: Tensor, centers: Tensor, few: int, chance: np.random.Generator) -> Tensor:
    """The center that each row points to most, [rows], of those of a few groups of centers, the nearest to the row's.

    Centers are grouped by k-means, into as many groups as each has: a row is compared with a few times the root of
    their number, block by block, as a product of matrices.
    """
    count = max(1, isqrt(len(centers)))
    heads = centers[torch.from_numpy(chance.choice(len(centers), count, replace=False))]
    units = normalize(centers)
    for _ in range(GROUPING_ROUNDS):
        groups = _largest(units @ heads.T)
        heads = normalize(torch.zeros_like(heads).index_add_(0, groups, units))
    near = (heads @ heads.T).topk(min(few, count)).indices.tolist()
    own = torch.empty(
        len(rows), dtype=torch.int64
    )  # made before: parts between scores would scatter the memory
    for low in range(0, len(rows), BLOCK):
        own[low : low + BLOCK] = _largest(rows[low : low + BLOCK] @ heads.T)
    members, mine = _by_group(groups, count), _by_group(own, count)
    found = torch.empty(len(rows), dtype=torch.int64)
    for group in range(count):
        candidates = torch.cat([members[other] for other in near[group]])
        if not len(candidates):  # its centers went elsewhere, and so did those near it
            candidates = torch.arange(len(centers))
        theirs = centers[candidates].T
        for some in torch.split(mine[group], BLOCK):
            found[some] = candidates[_largest(rows[some] @ theirs)]
    return found


def _largest(scores: Tensor) -> Tensor:
    """Where the largest of each row is: numpy's way takes a fifth of PyTorch's time."""
    return torch.from_numpy(scores.numpy().argmax(1))


def _by_group(groups: Tensor, count: int) -> list[Tensor]:
    """The members of each group, in their order."""
    order = groups.argsort(stable=True)
    ends = torch.searchsorted(groups[order], torch.arange(1, count))
    return list(torch.tensor_split(order, ends))
