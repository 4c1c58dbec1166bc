"""The outputs with the largest logits, of the few rows that clusters find."""

import logging

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.clustering import Clustering
from oddlot.sparse.exact import exact_topk
from oddlot.sparse.kernels import clusters
from oddlot.sparse.memory import check_memory
from oddlot.sparse.products import rounded
from oddlot.sparse.threads import Crew

EACH, GROUPS = 8, 32
"""rows of a cluster, about, and groups of centers that a row is compared with: finer than in training, where clusters
are made over and over"""
LEAST_ROUNDS, MOST_ROUNDS, ROWS_IN_ROUNDS = 5, 20, 600_000
"""of k-means, and rows that are looked at in all of them, about"""
COPIES = 2
"""clusters that a row is in: it is found by either, so that half as many clusters are looked into"""
FIRST_PROBES, FINENESS = 4, 4
"""clusters that are looked into at least, and of how many the next ones tried are one more"""
SHARE_THAT_PAYS = 1 / 32
"""of the clusters: with more of them, row by row, all rows are scored in less time as one product"""
CALIBRATED = 512
"""examples by which the clusters for a recall are counted"""
logger = logging.getLogger(__name__)


class Index:
    """Clusters of the rows of a layer as they are now: finds most of the largest logits among few rows.
    MemoryError: this machine has none for it."""

    def __init__(self, weight: NDArray[np.float32], bias: NDArray[np.float32], seed: int = 0) -> None:
        check_memory((2 + COPIES) * weight.size, f"finding few of {len(weight):,} rows")
        rounds = max(LEAST_ROUNDS, min(MOST_ROUNDS, ROWS_IN_ROUNDS // len(weight)))
        self.weight, self.bias, self.clustering = weight, bias, Clustering(EACH, rounds, GROUPS)
        self.clustering.update(Crew(), weight, bias, seed)
        self.begins, self.members = self.clustering.spread(Crew(), weight, COPIES, seed)
        whole, scales = rounded(Crew(), weight)
        self.rounded, self.scales, self.biases = (some[self.members] for some in (whole, scales, bias))
        self.seen = np.empty((0, weight.shape[1]), np.float32)
        self.known = dict[tuple[int, float], tuple[int, float, int]]()
        """by labels and recall: the clusters, the recall that they have, and on how many examples"""

    def topk(
        self, hidden: NDArray[np.float32], k: int, probes: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Logits and rows, [examples, k], of the best of so many clusters; -inf and -1 where they have fewer."""
        crew, own = Crew(), self.clustering
        best = own.best(crew, hidden, probes)
        values, rows = np.empty((len(hidden), k), np.float32), np.empty((len(hidden), k), np.int64)
        crew.share(
            clusters.best_members, hidden, best, self.begins, self.members, self.rounded, self.scales, self.biases,
            self.weight, self.bias, rows, values,
        )  # fmt: skip
        return values, rows

    def probes_for(self, hidden: NDArray[np.float32], k: int, recall: float) -> tuple[int, float]:
        """The fewest clusters, 4, 5, 6, 7, 8, 10, 12 ..., with that recall on the first 512 examples it was asked
        about, and the recall that they have; 0 and 1.0 where scoring all rows takes less time.

        Counted again when there are twice as many examples as the last time, or 512, and then no more.
        """
        if (missing := CALIBRATED - len(self.seen)) > 0:
            self.seen = np.concatenate([self.seen, hidden[:missing]])
        probes, has, examples = self.known.get((k, recall), (0, 0.0, 0))
        if len(self.seen) and (len(self.seen) >= 2 * examples or len(self.seen) == CALIBRATED > examples):
            probes, has = self._measured(k, recall)
            self.known[k, recall] = probes, has, len(self.seen)
            told = (
                f"{probes} clusters find {has:.3f} of the {k} best rows" if probes else "all rows are scored"
            )
            logger.info("%s, counted on %d examples", told, len(self.seen))
        return probes, has

    def _measured(self, k: int, recall: float) -> tuple[int, float]:
        exact, probes = self._exact(self.seen, k), FIRST_PROBES
        while probes <= max(FIRST_PROBES, SHARE_THAT_PAYS * len(self.clustering.means)):
            if (has := self._found(exact, self.seen, probes)) >= recall:
                return probes, has
            probes += probes // FINENESS
        return 0, 1.0

    def _exact(self, hidden: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        like = torch.from_numpy(hidden), torch.from_numpy(self.weight), torch.from_numpy(self.bias)
        return exact_topk(*like, k)[1].numpy()

    def _found(self, exact: NDArray[np.int64], hidden: NDArray[np.float32], probes: int) -> float:
        """The share of these rows that so many clusters find."""
        _, found = self.topk(hidden, exact.shape[1], probes)
        return float((exact[:, :, None] == found[:, None, :]).any(2).mean())
