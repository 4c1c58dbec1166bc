"""Search for the largest logits and their rows: exact, or with an index of clusters and a given recall."""

import logging
from functools import cached_property
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oddlot.sparse.clustering import Clustering
from oddlot.sparse.errors import bytes_held, check_memory
from oddlot.sparse.kernels import clusters
from oddlot.sparse.products import rounded
from oddlot.sparse.threads import Crew

BLOCK = 1 << 14
"""Number of rows to score at once. With more rows, allocating memory for their logits is slow."""


def exact_topk(hidden: Tensor, weight: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest logits and their rows, [examples, k], the largest first."""
    values, rows = hidden.new_empty(len(hidden), 0), hidden.new_empty(len(hidden), 0, dtype=torch.int64)
    for low in range(0, len(weight), BLOCK):
        block = torch.nn.functional.linear(hidden, weight[low : low + BLOCK], bias[low : low + BLOCK])
        found = _best(block, k)
        values, rows = torch.cat([values, found[0]], 1), torch.cat([rows, found[1] + low], 1)
        values, order = _best(values, k)
        rows = rows.gather(1, order)
    return values, rows


def _best(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values, or all, and their positions. For k = 1, NumPy is 10 times as fast as PyTorch."""
    if k > 1:
        found = logits.topk(min(k, logits.shape[1]))
        return found.values, found.indices
    places = torch.from_numpy(logits.detach().numpy().argmax(1))[:, None]
    return logits.gather(1, places), places


def exact_loss(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Return the mean softmax loss over all rows, for the examples with a label.

    `labels` are [examples, most], padded with -1. The loss of an example is the mean over its labels.
    """
    total = hidden.new_full((len(hidden),), -torch.inf)
    for low in range(0, len(weight), BLOCK):
        block = torch.nn.functional.linear(hidden, weight[low : low + BLOCK], bias[low : low + BLOCK])
        total = torch.logaddexp(total, block.logsumexp(1))
    example, place = (labels >= 0).nonzero(as_tuple=True)
    rows = labels[example, place]
    own = (hidden[example] * weight[rows]).sum(1) + bias[rows]
    counts = (labels >= 0).sum(1)
    losses = (total[example] - own) / counts[example]
    return losses.sum() / (counts > 0).sum().clamp(min=1)


EACH, GROUPS = 8, 32
"""Mean number of rows per cluster, and number of groups of centers that a row is compared with. Clusters are smaller
than in training, where they are rebuilt often."""
MIN_ROUNDS, MAX_ROUNDS, ROWS_IN_ROUNDS = 5, 20, 600_000
"""Limits of the rounds of k-means, and the approximate number of rows in all rounds."""
COPIES = 2
"""Number of clusters per row. With 2, half the clusters need to be searched."""
FIRST_PROBES, FINENESS = 4, 4
"""Smallest number of clusters to search, and the divisor that gives the next increment."""
SHARE_THAT_PAYS = 1 / 20
"""Share of the clusters above which scoring all rows is faster."""
CALIBRATED = 512
"""Number of examples for measuring the recall."""
MAX_WANTED = 100
"""Largest number of labels per example with the index. For more, all rows are scored."""
logger = logging.getLogger(__name__)


class Index:
    """An index of the current rows of a layer. It finds most of the largest logits without scoring all rows.

    Raise MemoryError if there is not enough memory.
    """

    def __init__(self, weight: NDArray[np.float32], bias: NDArray[np.float32], seed: int = 0) -> None:
        needs = (2 + COPIES) * weight.size + bytes_held()
        check_memory(needs, f"an index of {len(weight):,} rows, with the memory in use,")
        rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, ROWS_IN_ROUNDS // len(weight)))
        self.weight, self.bias, self.clustering = weight, bias, Clustering(EACH, rounds, GROUPS)
        self.clustering.update(Crew(), weight, bias, seed)
        self.begins, self.members = self.clustering.spread(Crew(), weight, COPIES, seed)
        whole, scales = rounded(Crew(), weight)
        self.rounded, self.scales, self.biases = (some[self.members] for some in (whole, scales, bias))

    def topk(
        self, hidden: NDArray[np.float32], k: int, probes: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return logits and rows, [examples, k], from the best clusters, padded with -inf and -1."""
        crew, own = Crew.of(len(hidden)), self.clustering
        values, rows = np.empty((len(hidden), k), np.float32), np.empty((len(hidden), k), np.int64)
        best = own.room(len(hidden), probes)
        with own.product.of(hidden) as (products, scales):
            crew.share(
                clusters.best_of_clusters, hidden, products, scales, *own.numbers, best, self.begins, self.members,
                self.rounded, self.scales, self.biases, self.weight, self.bias, rows, values,
            )  # fmt: skip
        return values, rows


class Search:
    """Searches for the largest logits of a layer, and scores only the rows that a given recall needs.

    The recall is measured on the first 512 different examples. Before that, all rows are scored without an index. The
    class is thread-safe.
    """

    def __init__(self, weight: NDArray[np.float32], bias: NDArray[np.float32], seed: int = 0) -> None:
        self.weight, self.bias, self.seed, self.lock = weight, bias, seed, Lock()
        self.shown = dict[bytes, None]()
        self.known = dict[tuple[int, float], tuple[int, float]]()
        """Number of clusters and measured recall, by number of labels and wanted recall."""

    @property
    def missing(self) -> int:
        """Number of examples that are still needed to measure the recall."""
        return max(0, CALIBRATED - len(self.shown))

    def show(self, hidden: NDArray[np.float32]) -> None:
        """Add examples, [examples, columns], for measuring the recall, until there are enough."""
        with self.lock:
            for vector in hidden:
                if self.missing:
                    self.shown[vector.tobytes()] = None

    @cached_property
    def index(self) -> Index:
        """The index. It is built on first use, in seconds to a minute."""
        logger.info("building an index of %d labels, which takes seconds to a minute", len(self.weight))
        return Index(self.weight, self.bias, self.seed)

    def probes_for(self, k: int, recall: float) -> tuple[int, float]:
        """Return the smallest number of clusters (4, 5, 6, 7, 8, 10, 12 ...) with this recall of the k largest logits,
        and the measured recall. Return 0 and 1.0 if all rows must be scored.
        """
        if self.missing or k > MAX_WANTED:
            return 0, 1.0
        with self.lock:
            if (k, recall) not in self.known:
                self.known[k, recall] = probes, has = self._measured(k, recall)
                found = f"{probes} clusters find {has:.3f} of the {k} best rows"
                found = found if probes else "all rows are scored"
                logger.info("%s, measured on %d examples", found, len(self.shown))
            return self.known[k, recall]

    def _measured(self, k: int, recall: float) -> tuple[int, float]:
        shown = np.array([np.frombuffer(vector, np.float32) for vector in self.shown])
        exact, probes = self._exact(shown, k), FIRST_PROBES
        while probes <= max(FIRST_PROBES, SHARE_THAT_PAYS * len(self.index.clustering.means)):
            found = self.index.topk(shown, k, probes)[1]
            if (has := float((exact[:, :, None] == found[:, None, :]).any(2).mean())) >= recall:
                return probes, has
            probes += probes // FINENESS
        return 0, 1.0

    def _exact(self, shown: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        like = torch.from_numpy(shown), torch.from_numpy(self.weight), torch.from_numpy(self.bias)
        return exact_topk(*like, k)[1].numpy()
