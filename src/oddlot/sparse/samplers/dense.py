"""All rows for every example: the softmax itself."""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from oddlot.sparse.active_set import Active
from oddlot.sparse.frequency_draws import fill_up
from oddlot.sparse.threads import Crew


@dataclass
class Dense:
    """Every row is computed for every example: for a few thousand outputs, and to compare others with."""

    def most(self, out_features: int) -> int:
        return out_features

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        """It knows nothing."""

    def choose(self, crew: Crew, hidden: NDArray[Any], active: Active, seed: int) -> None:
        fill_up(crew, active, active.out_features, seed)
        active.sure[:] = active.counts  # none stands for others

    def forget(self) -> None:
        """It knows nothing."""
