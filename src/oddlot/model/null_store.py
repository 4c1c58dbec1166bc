"""A store for runs that compute nothing."""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from oddlot.core.commands import DriftOf
from oddlot.core.tasks import Facts, UpdateId
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.payload import Payload
from oddlot.model.weight_store import WeightStore


class NullStore(WeightStore):
    """Initial weights that never change, for a run that computes nothing. It counts versions."""

    def acquire(self, version: int) -> FlatBuffer:
        """Return the weights. They are the same for all versions."""
        return self.weights

    def release(self, version: int) -> None:
        """Do nothing."""

    def acquire_evaluated(self, version: int) -> FlatBuffer:
        """Return the weights."""
        return self.weights

    def release_evaluated(self, version: int) -> None:
        """Do nothing."""

    def receive(self, facts: Facts, payload: Payload | None) -> None:
        """Accept every update."""

    def drop(self, update: UpdateId) -> None:
        """Do nothing."""

    def step(
        self,
        shares: Mapping[UpdateId, float],
        measure: int = 0,
        merged: int | None = None,
        drift: DriftOf | None = None,
        chunks: Sequence[int] | None = None,
    ) -> None:
        """Count a version."""
        self.version += 1

    def blend(self, shares: Mapping[UpdateId, float], measure: int = 0, keep: bool = False) -> None:
        """Count a version."""
        self.version += 1

    def mark(self) -> None:
        """Do nothing."""

    def state_tensors(self, kept: Iterable[int] = ()) -> dict[str, Tensor]:
        """Return the weights and the version."""
        return super().state_tensors()
