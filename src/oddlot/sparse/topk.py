"""The outputs with the largest logits: exact, or of few rows that a tree finds."""

from math import ceil, log2

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oddlot.sparse.kernels import scoring, tree
from oddlot.sparse.samplers import Tree
from oddlot.sparse.threads import Crew

BLOCK = 1 << 16
"""rows that are scored at once"""
LEAF = 8
FIRST_BEAM, MOST_BEAM = 4, 1024


def exact_topk(hidden: Tensor, weight: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest logits and their rows, [examples, k], the largest first; all rows are scored, block by block."""
    values, rows = hidden.new_empty(len(hidden), 0), torch.empty(len(hidden), 0, dtype=torch.int64)
    for low in range(0, len(weight), BLOCK):
        block = torch.nn.functional.linear(hidden, weight[low : low + BLOCK], bias[low : low + BLOCK])
        found = block.topk(min(k, block.shape[1]))
        values, rows = torch.cat([values, found.values], 1), torch.cat([rows, found.indices + low], 1)
        values, order = values.topk(min(k, values.shape[1]))
        rows = rows.gather(1, order)
    return values, rows


class Index:
    """A tree over the rows of a layer as they are now: finds most of the largest logits among few rows."""

    def __init__(self, weight: NDArray[np.float32], bias: NDArray[np.float32], seed: int = 0) -> None:
        self.weight, self.bias = weight, bias
        self.tree = Tree(leaf=LEAF)
        for step in range(2):  # the second time from the halves of the first
            self.tree.refresh.forget()
            self.tree.prepare(Crew(), weight, bias, step + 1, seed)

    def topk(
        self, hidden: NDArray[np.float32], k: int, beam: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Logits and rows, [examples, k], of the best that `beam` leaves have; -inf and -1 where they have fewer."""
        crew, own = Crew(), self.tree
        leaves = np.empty((len(hidden), min(beam, 1 << own.depth)), np.int64)
        first = min(own.depth, ceil(log2(max(own.wide, leaves.shape[1]))))
        crew.share(tree.descend, hidden, own.centers, own.center_biases, own.depth, first, leaves)
        values, rows = np.empty((len(hidden), k), np.float32), np.empty((len(hidden), k), np.int64)
        crew.share(
            scoring.best_in_leaves, hidden, self.weight, self.bias, leaves, own.depth, own.order, rows, values
        )
        return values, rows

    def recall(self, hidden: NDArray[np.float32], k: int, beam: int) -> float:
        """The share of the k largest logits of these examples that is found."""
        like = torch.from_numpy(hidden), torch.from_numpy(self.weight), torch.from_numpy(self.bias)
        _, exact = exact_topk(*like, k)
        _, found = self.topk(hidden, k, beam)
        return float((exact.numpy()[:, :, None] == found[:, None, :]).any(2).mean())

    def beam_for(self, hidden: NDArray[np.float32], k: int, recall: float) -> tuple[int, float]:
        """The fewest leaves, a power of two, with that recall on these examples, and the recall that they have."""
        beam = FIRST_BEAM
        while (has := self.recall(hidden, k, beam)) < recall and beam < min(MOST_BEAM, 1 << self.tree.depth):
            beam *= 2
        return beam, has
