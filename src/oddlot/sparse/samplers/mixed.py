"""The rows of several samplers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from oddlot.sparse.active_set import ActiveSet
from oddlot.sparse.errors import coded, invalid_value
from oddlot.sparse.sampler import Sampler, check_sampler
from oddlot.sparse.threads import Crew


@dataclass
class Mixed:
    """The rows that each of several samplers finds, and the random draws of the last sampler.

    Use it to combine indexes: `Mixed([LSH(by_chance=0), Clusters()])`. Raise ValueError if a sampler other than the
    last draws rows randomly or has `changed_only=True`.
    """

    samplers: Sequence[Sampler]
    """The samplers, in their order."""

    def __post_init__(self) -> None:
        given: object = self.samplers
        if not isinstance(given, Sequence) or not given:
            raise invalid_value("samplers", self.samplers, "a list of at least one sampler")
        for sampler in self.samplers:
            check_sampler(sampler, or_none=False)
        for place, sampler in enumerate(self.samplers[:-1]):
            if getattr(sampler, "changed_only", False):
                message = f"{sampler!r} must be the last of the samplers, because it has changed_only=True"
                raise coded(ValueError(message), "changed_only_not_last", place=place)

    @property
    def layer(self) -> object:
        """The layer that all samplers belong to, or None if they differ."""
        known = [getattr(sampler, "layer", None) for sampler in self.samplers]
        return known[0] if all(layer is known[0] for layer in known) else None

    @layer.setter
    def layer(self, layer: object) -> None:
        for sampler in self.samplers:
            sampler.layer = layer  # type: ignore[attr-defined]  # set on any kind of sampler

    @property
    def changed_only(self) -> bool:
        """Whether any of the samplers has `changed_only`."""
        return any(getattr(sampler, "changed_only", False) for sampler in self.samplers)

    def most(self, out_features: int) -> int:
        """Return the largest number of rows for an example."""
        return min(sum(sampler.most(out_features) for sampler in self.samplers), out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        """Prepare for a batch, and rebuild the index if it is outdated."""
        # Another seed gives LSH samplers other hash functions.
        for place, sampler in enumerate(self.samplers):
            sampler.prepare(crew, weight, bias, step, seed + place)

    def choose(self, crew: Crew, hidden: NDArray[Any], active: ActiveSet, seed: int) -> None:
        """Add the chosen rows to every example of the batch."""
        *firsts, last = self.samplers
        for place, sampler in enumerate(firsts):
            sampler.choose(crew, hidden, active, seed + 2 * (place + 1))
            if (active.sure < active.counts).any():
                message = f"{sampler!r} must be the last of the samplers, because it draws rows randomly"
                raise coded(ValueError(f"{message}; or set by_chance=0"), "by_chance_not_last", place=place)
        last.choose(crew, hidden, active, seed)

    def forget(self) -> None:
        """Discard the index, because the rows were replaced."""
        for sampler in self.samplers:
            sampler.forget()
