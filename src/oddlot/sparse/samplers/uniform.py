"""Uniformly drawn rows, different for each example."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from oddlot.sparse.active_set import ActiveSet
from oddlot.sparse.frequency_draws import fill_up
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import check_whole


@dataclass
class Uniform:
    """Uniformly drawn rows for every example."""

    count: int = 300
    """Rows per example."""
    group: int = 1
    """Number of consecutive examples that share their rows."""

    def __post_init__(self) -> None:
        check_whole(count=self.count, group=self.group)

    def most(self, out_features: int) -> int:
        """Return the largest number of rows for an example."""
        return min(self.count, out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        """Do nothing: there is no index."""

    def choose(self, crew: Crew, hidden: NDArray[Any], active: ActiveSet, seed: int) -> None:
        """Add the chosen rows to every example of the batch."""
        fill_up(crew, active, self.count, seed, self.group)

    def forget(self) -> None:
        """Do nothing: there is no index."""
