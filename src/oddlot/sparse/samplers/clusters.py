"""The rows of the clusters where a hidden vector points, and some by chance for all the others."""

import logging
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.active_set import Active
from oddlot.sparse.clustering import Clustering
from oddlot.sparse.frequency_draws import Frequencies
from oddlot.sparse.kernels import clusters
from oddlot.sparse.sampler import Refresh, check_refresh
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import check_number, check_whole

MIN_BY_CHANCE, ROWS_FOR_ONE = 200, 1_500
logger = logging.getLogger(__name__)


@dataclass
class Clusters:
    """A hash that is learnt: the rows of those clusters whose mean logit is the largest, `found` of them at most.

    Clusters of about `each` rows that point the same way (larger ones where they would be more than 8,192), made anew
    as `refresh` says, tell an example apart from what it is most easily taken for. Rows of `by_chance` draws, in which
    those that are labels more often are more likely (see `Unigram`), stand for all others, so that the sum over all
    rows is estimated without bias.
    """

    each: int = 16
    probes: int = 10
    """clusters for an example"""
    found: int = 200
    by_chance: int | None = None
    """None: 200, or one for each 1,500 rows, so that none stands for very many"""
    frequency: float = 0.8
    """the share of these draws that goes by how often rows are labels; 0: rows that are all alike, each once"""
    group: int = 8
    """so many examples that follow each other draw the same rows by chance, so that fewer are touched"""
    refresh: Refresh = field(default_factory=Refresh)
    counts: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    """how often each row is a label, where that is known; None: it is counted as labels come"""

    def __post_init__(self) -> None:
        check_whole(each=self.each, probes=self.probes, group=self.group)
        check_whole(0, found=self.found, by_chance=0 if self.by_chance is None else self.by_chance)
        check_whole(**{"found + by_chance": self.most((1 << 31) - 1)})
        check_number(0, 1, frequency=self.frequency)
        check_refresh(self.refresh)
        self.refresh = copy(self.refresh)  # which counts: it may be another sampler's too
        self.clustering, self.frequencies = Clustering(self.each), Frequencies(self.frequency, self.counts)

    def most(self, out_features: int) -> int:
        return min(self.found + self._by_chance(out_features), out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        if self.refresh.due(step, len(weight)):
            self.clustering.update(crew, weight, bias, seed)
            self.frequencies.count_up(len(weight), self._by_chance(len(weight)))
            if self.refresh.times == 1:
                self._log(len(weight))

    def choose(self, crew: Crew, hidden: NDArray[Any], active: Active, seed: int) -> None:
        own = self.clustering
        best = own.best(crew, hidden, self.probes)
        crew.share(
            clusters.take_members, best, own.begins[0], own.members[0], self.found, active.starts, active.rows,
            active.counts, active.seen, active.mark, seed,
        )  # fmt: skip
        rows = active.out_features
        self.frequencies.fill_up(crew, active, seed, self.group, self.most(rows) == rows)

    def _by_chance(self, out_features: int) -> int:
        return max(MIN_BY_CHANCE, out_features // ROWS_FOR_ONE) if self.by_chance is None else self.by_chance

    def _log(self, rows: int) -> None:
        clusters, by_chance = len(self.clustering.means), self._by_chance(rows)
        told = (
            "%d clusters for %d rows: for an example the best %d of them, at most %d rows, and %d by chance"
        )
        logger.info(told, clusters, rows, min(self.probes, clusters), self.found, by_chance)

    def forget(self) -> None:
        self.refresh.forget()
        self.clustering = Clustering(self.each)
        self.frequencies.forget()
