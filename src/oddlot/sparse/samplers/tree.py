"""Rows of the leaves where a hidden vector falls in a tree of the rows, and some by chance for all the others."""

from dataclasses import dataclass, field
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.active import Active
from oddlot.sparse.kernels import tree
from oddlot.sparse.sampler import Refresh
from oddlot.sparse.samplers.uniform import fill_up
from oddlot.sparse.threads import Crew

SHARED_LEVELS = 6
"""from which on each thread has whole subtrees"""


@dataclass
class Tree:
    """A hash that is learnt: the `beam` leaves, of about `leaf` rows each, whose mean logit is the largest.

    A balanced tree of two-means over the rows, made anew every `refresh.every` steps: its leaves hold rows that are
    alike, so that an example is told apart from what it is most easily taken for. Each of `by_chance` other rows
    stands for many, so that the sum over all rows is estimated without bias. All nodes of the level that has `wide`
    are asked, and from there on the children of the best. Balanced trees of labels are those of Prabhu et al.,
    "Parabel" (WWW 2018).
    """

    leaf: int = 8
    beam: int = 8
    by_chance: int = 200
    group: int = 8
    """so many examples that follow each other draw the same rows by chance, so that fewer are touched"""
    wide: int = 1024
    refresh: Refresh = field(default_factory=Refresh)
    order: NDArray[np.int32] = field(init=False, repr=False, default_factory=lambda: np.zeros(0, np.int32))
    """the rows, leaf by leaf"""
    depth: int = field(init=False, repr=False, default=0)

    def most(self, out_features: int) -> int:
        return min(2 * self.leaf * self.beam + self.by_chance, out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        if not self.refresh.due(step, len(weight)):
            return
        rows = len(weight)
        rounds = 1
        if len(self.order) != rows:
            rounds, self.order = tree.ROUNDS, np.random.default_rng(seed).permutation(rows).astype(np.int32)
        self.depth = max(1, round(log2(max(2, rows / self.leaf))))
        scales = np.empty(rows, np.float32)
        crew.share(tree.measure_lengths, weight, scales)
        room = np.empty(rows, np.int32), weight, scales, np.empty(rows, np.float32)
        alone = min(self.depth, SHARED_LEVELS)
        for level in range(alone):
            crew.share(tree.grow, level, 1, self.order, *room, rounds)
        crew.share(tree.grow, alone, self.depth - alone, self.order, *room, rounds)
        self.centers = np.empty((2 << self.depth, weight.shape[1]), np.float32)
        self.center_biases = np.zeros(2 << self.depth, np.float32)
        centers = self.centers, self.center_biases
        crew.share(tree.average_leaves, self.depth, self.order, weight, bias, *centers)
        tree.average_nodes(self.depth, *centers)

    def choose(self, crew: Crew, hidden: NDArray[Any], active: Active, seed: int) -> None:
        leaves = np.empty((len(hidden), min(self.beam, 1 << self.depth)), np.int64)
        first = min(self.depth, ceil(log2(max(self.wide, leaves.shape[1]))))
        crew.share(tree.descend, hidden, self.centers, self.center_biases, self.depth, first, leaves)
        crew.share(
            tree.take_leaves, leaves, self.depth, self.order, active.starts, active.rows, active.counts,
            active.seen, active.mark,
        )  # fmt: skip
        fill_up(crew, active, self.by_chance, seed, self.group)

    def forget(self) -> None:
        self.refresh.forget()
