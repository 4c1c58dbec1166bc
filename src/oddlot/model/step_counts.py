"""Counts of optimizer steps per parameter. A parameter without a gradient takes no step."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from oddlot.core.support.errors import CheckpointError
from oddlot.model.flat_buffer import FlatBuffer, Layout


class Stretch(NamedTuple):
    """Neighboring parameters of a section that take the same step."""

    start: int
    """First element, counted from the start of the section."""
    stop: int
    """End (exclusive), counted from the start of the section."""
    steps: int | None
    """Number of this step for these parameters, from 1. None if they take no step."""


Stretches = Mapping[int, Sequence[Stretch]]
"""Stretches of each section, by index. Together they cover its parameters."""


class StepCounts:
    """The number of steps of each trainable parameter.

    As in torch.optim, a parameter with the gradient None takes no step: no weight decay, no momentum, and Adam's bias
    correction counts its own steps.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._counts = torch.zeros(len(layout.trainable_entries), dtype=torch.int64, device="cpu")
        self._all: int | None = 0
        """Number of steps of all parameters if they are equal. If None, use `_counts`."""

    @property
    def counts(self) -> Tensor:
        """Number of steps of each parameter, int64 [parameters], in the layout's order."""
        return self._counts if self._all is None else self._counts.fill_(self._all)

    def advance(self, updates: Sequence[FlatBuffer], *, apart: bool = False) -> Stretches:
        """Count one step of every parameter that had a gradient in any of the updates, and return the stretches.

        With `apart`, each parameter is a stretch of its own, without the padding after it. PyTorch rounds the last
        elements of a tensor in another way than the others.
        """
        missing = _in_none(updates)
        if missing is None and self._all is not None and apart:
            self._all += 1
            return self._stretches(None, apart)
        if missing is None and self._all is not None:
            self._all += 1
            sections = self.layout.sections
            return {at: (Stretch(0, sections[at].numbers, self._all),) for at in self._sections}
        self.counts.add_(1 if missing is None else (~missing).long())
        self._all = None
        return self._stretches(missing, apart)

    def load(self, counts: Tensor) -> None:
        """Continue from saved counts. Raise CheckpointError if they belong to another model."""
        mine = self._counts
        if counts.shape != mine.shape or counts.dtype != mine.dtype or bool((counts < 0).any()):
            shape = list(counts.shape)
            message = f"the checkpoint has step counts of {shape} parameters, but the model has {len(mine)}"
            raise CheckpointError(message, "other_model", shape=shape, parameters=len(mine))
        mine.copy_(counts)
        first = int(mine[0])
        self._all = first if bool((mine == first).all()) else None

    @property
    def _sections(self) -> Sequence[int]:
        return self.layout.of_role("trainable")

    def _stretches(self, missing: Tensor | None, apart: bool) -> Stretches:
        """Return stretches of neighboring parameters with equal counts, including the padding after them."""
        left_alone = [False] * len(self._counts) if missing is None else missing.tolist()
        counts = self._counts.tolist() if self._all is None else [self._all] * len(self._counts)
        steps = [None if alone else count for alone, count in zip(left_alone, counts, strict=True)]
        found: dict[int, list[Stretch]] = {at: [] for at in self._sections}
        for entry, count in zip(self.layout.trainable_entries, steps, strict=True):
            found[entry.section].append(Stretch(entry.offset, entry.offset + entry.numbers, count))
        if apart:
            return found
        return {at: _joined(parts, self.layout.sections[at].numbers) for at, parts in found.items()}


def _in_none(updates: Sequence[FlatBuffer]) -> Tensor | None:
    """Return which parameters had no gradient in any update, bool [parameters], or None if all had one."""
    missing: Tensor | None = None
    for flat in updates:
        flags = flat.without_gradient
        if not flags.any():
            return None
        flags = flags.bool().cpu()
        missing = flags if missing is None else missing & flags
    return missing if missing is not None and missing.any() else None


def _joined(parts: Sequence[Stretch], end: int) -> list[Stretch]:
    """Join neighboring stretches with equal counts."""
    starts = [part for at, part in enumerate(parts) if not at or part.steps != parts[at - 1].steps]
    stops = [after.start for _, after in pairwise(starts)] + [end]
    return [Stretch(part.start, stop, part.steps) for part, stop in zip(starts, stops, strict=True)]
