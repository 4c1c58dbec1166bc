"""The same randomly drawn rows for every example of a batch: the usual sampled softmax."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.active_set import ActiveSet
from oddlot.sparse.kernels import row_selection
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import check_whole


@dataclass
class Shared:
    """Uniformly drawn rows that all examples of a batch share, in addition to their labels."""

    count: int = 4096
    """Rows per batch."""

    def __post_init__(self) -> None:
        check_whole(count=self.count)

    def most(self, out_features: int) -> int:
        """Return the largest number of rows for an example."""
        return min(self.count, out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        """Do nothing: there is no index."""

    def choose(self, crew: Crew, hidden: NDArray[Any], active: ActiveSet, seed: int) -> None:
        """Add the chosen rows to every example of the batch."""
        active.sure[:] = active.counts
        chance, count = np.random.default_rng(seed), min(self.count, active.out_features)
        shared = chance.choice(active.out_features, count, replace=False, shuffle=False).astype(np.int32)
        crew.share(
            row_selection.take_shared, shared, active.starts, active.rows, active.counts, active.log_weights,
            active.out_features, active.seen, active.mark,
        )  # fmt: skip

    def forget(self) -> None:
        """Do nothing: there is no index."""
