"""All rows for every example: the full softmax."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from oddlot.sparse.active_set import ActiveSet
from oddlot.sparse.frequency_draws import fill_up
from oddlot.sparse.threads import Crew


@dataclass
class Dense:
    """All rows for every example: for up to a few thousand outputs, or as a baseline."""

    def most(self, out_features: int) -> int:
        """Return the largest number of rows for an example."""
        return out_features

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        """Do nothing: there is no index."""

    def choose(self, crew: Crew, hidden: NDArray[Any], active: ActiveSet, seed: int) -> None:
        """Add the chosen rows to every example of the batch."""
        fill_up(crew, active, active.out_features, seed)
        active.sure[:] = active.counts  # no row represents others

    def forget(self) -> None:
        """Do nothing: there is no index."""
