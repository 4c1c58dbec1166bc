"""An update that has arrived, as gates receive it, and norms of weights and updates."""

from dataclasses import dataclass
from functools import cached_property
from math import isfinite, sqrt

import torch
from torch import Tensor

from oddlot.core.tasks import Facts, Kind
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.vector_ops import chunks


@dataclass
class Arrival:
    """An update that has arrived, as gates receive it."""

    facts: Facts
    kind: Kind
    """Kind of its payload."""
    flat: FlatBuffer
    weights: FlatBuffer
    """The current version of the model."""
    base: FlatBuffer | None = None
    """Version that the task started from. None if it is no longer kept."""

    @cached_property
    def norm(self) -> float | None:
        """Euclidean norm of a gradient or delta, or of the difference of weights from `base`. None without a base."""
        if self.kind == "weights" and self.base is None:
            return None
        return norm_of(self.flat, self.base if self.kind == "weights" else None)


def norm_of(flat: FlatBuffer, base: FlatBuffer | None = None) -> float:
    """Return the Euclidean norm of the trainable parameters, or of their difference from `base`.

    It is not finite if a parameter is not.
    """
    indices = flat.layout.of_role("trainable")
    pairs = [(flat.section(index), None if base is None else base.section(index)) for index in indices]
    total = sqrt(sum(_square(section, other) for section, other in pairs))
    return (
        total
        if isfinite(total)
        else sqrt(sum(_square(section, other, wide=True) for section, other in pairs))
    )


def _square(section: Tensor, other: Tensor | None, wide: bool = False) -> float:
    """Return the sum of squares of a section, or of its difference from `other`.

    With `wide`, it is computed in float64, because squares of large float32 numbers overflow.
    """
    dtype = torch.float64 if wide or section.dtype == torch.float64 else torch.float32
    if other is None and not wide:
        return float(torch.linalg.vector_norm(section, dtype=dtype)) ** 2
    total = 0.0
    for span in chunks(section.numel(), section.device):
        part = section[span].to(dtype)
        total += float(torch.linalg.vector_norm(part if other is None else part - other[span])) ** 2
    return total
