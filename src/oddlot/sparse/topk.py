"""The outputs with the largest logits: of the few rows that clusters find, as few as have a recall."""

import logging
from functools import cached_property
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.clustering import Clustering
from oddlot.sparse.exact_scoring import exact_topk
from oddlot.sparse.kernels import clusters
from oddlot.sparse.memory import bytes_held, check_memory
from oddlot.sparse.products import rounded
from oddlot.sparse.threads import Crew

EACH, GROUPS = 8, 32
"""rows of a cluster, about, and groups of centers that a row is compared with: finer than in training, where clusters
are made over and over"""
MIN_ROUNDS, MAX_ROUNDS, ROWS_IN_ROUNDS = 5, 20, 600_000
"""of k-means, and rows that are looked at in all of them, about"""
COPIES = 2
"""clusters that a row is in: it is found by either, so that half as many clusters are looked into"""
FIRST_PROBES, FINENESS = 4, 4
"""clusters that are looked into at least, and of how many the next ones tried are one more"""
SHARE_THAT_PAYS = 1 / 20
"""of the clusters: with more of them, row by row, all rows are scored in less time as one product"""
CALIBRATED = 512
"""examples by which the clusters for a recall are counted"""
MAX_WANTED = 100
"""labels of an example: for more, all are scored"""
logger = logging.getLogger(__name__)


class Index:
    """Clusters of the rows of a layer as they are now: finds most of the largest logits among few rows.
    MemoryError: this machine has none for it."""

    def __init__(self, weight: NDArray[np.float32], bias: NDArray[np.float32], seed: int = 0) -> None:
        needs = (2 + COPIES) * weight.size + bytes_held()
        check_memory(needs, f"finding few of {len(weight):,} rows, beside what is held,")
        rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, ROWS_IN_ROUNDS // len(weight)))
        self.weight, self.bias, self.clustering = weight, bias, Clustering(EACH, rounds, GROUPS)
        self.clustering.update(Crew(), weight, bias, seed)
        self.begins, self.members = self.clustering.spread(Crew(), weight, COPIES, seed)
        whole, scales = rounded(Crew(), weight)
        self.rounded, self.scales, self.biases = (some[self.members] for some in (whole, scales, bias))

    def topk(
        self, hidden: NDArray[np.float32], k: int, probes: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Logits and rows, [examples, k], of the best of so many clusters; -inf and -1 where they have fewer."""
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
    """The largest logits of a layer as it is now, among as few rows as have a recall.

    How few these are is counted on the first 512 different examples that it is shown. Until then all rows are to be
    scored, and clusters have not been made. Several threads may ask at once.
    """

    def __init__(self, weight: NDArray[np.float32], bias: NDArray[np.float32], seed: int = 0) -> None:
        self.weight, self.bias, self.seed, self.lock = weight, bias, seed, Lock()
        self.shown = dict[bytes, None]()
        self.known = dict[tuple[int, float], tuple[int, float]]()
        """by labels and recall: the clusters, and the recall that they have"""

    @property
    def missing(self) -> int:
        """How many examples are to be shown before few rows are found."""
        return max(0, CALIBRATED - len(self.shown))

    def show(self, hidden: NDArray[np.float32]) -> None:
        """Examples by which to count, [examples, columns]; what was shown before, or is not missing, is left out."""
        with self.lock:
            for vector in hidden:
                if self.missing:
                    self.shown[vector.tobytes()] = None

    @cached_property
    def index(self) -> Index:
        """Made when it is asked for, in seconds or a minute."""
        logger.info("clusters of %d labels are made, in seconds or a minute", len(self.weight))
        return Index(self.weight, self.bias, self.seed)

    def probes_for(self, k: int, recall: float) -> tuple[int, float]:
        """The fewest clusters, 4, 5, 6, 7, 8, 10, 12 ..., that have this recall of the k largest logits, and the recall
        that they have; 0 and 1.0 where all rows are to be scored."""
        if self.missing or k > MAX_WANTED:
            return 0, 1.0
        with self.lock:
            if (k, recall) not in self.known:
                self.known[k, recall] = probes, has = self._measured(k, recall)
                found = f"{probes} clusters find {has:.3f} of the {k} best rows"
                found = found if probes else "all rows are scored"
                logger.info("%s, counted on %d examples", found, len(self.shown))
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
