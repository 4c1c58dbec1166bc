"""The rows of the clusters nearest to a hidden vector, and randomly drawn rows that represent all others."""

import logging
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.active_set import ActiveSet
from oddlot.sparse.clustering import Clustering
from oddlot.sparse.frequency_draws import FrequencyDraws
from oddlot.sparse.kernels import clusters
from oddlot.sparse.sampler import Refresh, check_refresh
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import check_number, check_whole

MIN_BY_CHANCE, ROWS_FOR_ONE = 200, 1_500
logger = logging.getLogger(__name__)


@dataclass
class Clusters:
    """The rows of the clusters with the largest mean logits, and randomly drawn rows that represent all others.

    Rows are clustered by direction (at most 8,192 clusters). Rows of the best clusters are those that an example is
    most easily confused with. Draws by label frequency (see `Unigram`) make the estimate of the sum over all rows
    unbiased.
    """

    each: int = 16
    """Mean number of rows of a cluster, if there are at most 8,192 clusters."""
    probes: int = 10
    """Clusters per example."""
    found: int = 200
    """Largest number of rows from clusters per example."""
    by_chance: int | None = None
    """Random draws per example. Default: 200, or one per 1,500 rows if that is more."""
    frequency: float = 0.8
    """Share of the draws by label frequency; the others are uniform. 0: uniform draws, each row at most once."""
    group: int = 8
    """Number of consecutive examples that share random draws, to reduce the number of computed rows."""
    refresh: Refresh = field(default_factory=Refresh)
    """When the clusters are rebuilt."""
    counts: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    """Label frequency of each row. Default: counted during training."""

    def __post_init__(self) -> None:
        check_whole(each=self.each, probes=self.probes, group=self.group)
        check_whole(0, found=self.found, by_chance=0 if self.by_chance is None else self.by_chance)
        check_whole(**{"found + by_chance": self.most((1 << 31) - 1)})
        check_number(0, 1, frequency=self.frequency)
        check_refresh(self.refresh)
        self.refresh = copy(self.refresh)  # it has state, and may be shared with another sampler
        self.clustering, self.frequencies = Clustering(self.each), FrequencyDraws(self.frequency, self.counts)

    def most(self, out_features: int) -> int:
        """Return the largest number of rows for an example."""
        return min(self.found + self._by_chance(out_features), out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        """Prepare for a batch, and rebuild the index if it is outdated."""
        if self.refresh.due(step, len(weight)):
            self.clustering.update(crew, weight, bias, seed)
            self.frequencies.count_up(len(weight), self._by_chance(len(weight)))
            if self.refresh.times == 1:
                self._log(len(weight))

    def choose(self, crew: Crew, hidden: NDArray[Any], active: ActiveSet, seed: int) -> None:
        """Add the chosen rows to every example of the batch."""
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
        message = "%d clusters of %d rows; per example %d clusters with at most %d rows, and %d random draws"
        logger.info(message, clusters, rows, min(self.probes, clusters), self.found, by_chance)

    def forget(self) -> None:
        """Discard the index, because the rows were replaced."""
        self.refresh.forget()
        self.clustering = Clustering(self.each)
        self.frequencies.forget()
