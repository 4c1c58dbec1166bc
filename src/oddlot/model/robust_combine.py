"""Rules that combine the updates of a merge so that a few hostile or broken updates cannot decide the result.

- `TrimmedMean` and `Median`: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates"
  (2018), algorithm 1.
- `Krum`: Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent" (2017), section 4;
  with `average`, their Multi-Krum.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated

import torch
from torch import Tensor

from oddlot.core.support.validation import AtLeastOne, Must, check_settings
from oddlot.model.combine import LEAST_UPDATES, Combine, Section
from oddlot.model.trimmed_means import trimmed_mean

DISTANCE_NUMBERS = 1 << 16
"""Elements per chunk of pairwise distances on a CPU."""
TRIM = Must(
    "a share above 0 and below 0.5, or a number of updates from 1 on",
    lambda value: 0 < value < 0.5 or (value >= 1 and value == int(value)),
)


@dataclass(frozen=True)
class TrimmedMean(Combine):
    """For each number of the model, the mean of the updates' values without the smallest and the largest ones."""

    trim: Annotated[float, TRIM] = 0.2
    """Values to leave out at each end: a share of the updates below 0.5, rounded up, or a number. One value
    stays, or two if their number is even."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def needs(self) -> int:
        """Return the smallest number of updates of which one stays."""
        return LEAST_UPDATES if self.trim < 1 else 2 * int(self.trim) + 1

    def combine(self, sections: Sequence[Section]) -> list[float]:
        """Write the trimmed means. Return the share of each update's values that was trimmed."""
        return _trimmed(sections, self.trimmed(len(sections[0].values)))

    def trimmed(self, updates: int) -> int:
        """Return the number of values left out at each end, given the number of updates."""
        wanted = int(self.trim) if self.trim >= 1 else ceil(round(self.trim * updates, 9))
        return min(wanted, _most(updates))


@dataclass(frozen=True)
class Median(Combine):
    """For each number of the model, the median of the updates' values: the mean of the middle two if it is even."""

    def combine(self, sections: Sequence[Section]) -> list[float]:
        """Write the medians. Return the share of each update's values that is not next to a median."""
        return _trimmed(sections, _most(len(sections[0].values)))


@dataclass(frozen=True)
class Krum(Combine):
    """The update with the smallest sum of squared distances to the updates closest to it.

    These are its n - faulty - 2 closest ones of n. The proof needs n >= 2 faulty + 3. A merge with fewer updates, as
    after the loss of workers, uses the median instead.
    """

    faulty: AtLeastOne = 1
    """Number of hostile updates of a merge that the rule tolerates."""
    average: AtLeastOne = 1
    """Number of best updates to average (Multi-Krum). At most n - faulty - 2 are used."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def needs(self) -> int:
        """Return the smallest number of updates of the proof."""
        return 2 * self.faulty + 3

    def combine(self, sections: Sequence[Section]) -> list[float]:
        """Write the mean of the chosen updates. Return 0.0 for them and 1.0 for the others."""
        count = len(sections[0].values)
        if count < self.needs:
            return Median().combine(sections)
        scores = self.scores(_square_distances(sections))
        best = scores.argsort(stable=True)[: min(self.average, count - self.faulty - 2)].tolist()
        for values, out in sections:
            _mean([values[index] for index in best], out)
        return [0.0 if index in best else 1.0 for index in range(count)]

    def scores(self, distances: Tensor) -> Tensor:
        """Return the score of each update, given the squared distances of all pairs. Smaller is better."""
        closest = len(distances) - self.faulty - 2
        # Column 0 is the distance from itself.
        return distances.sort(dim=1).values[:, 1 : 1 + closest].sum(dim=1)


def _most(updates: int) -> int:
    """Return the largest number of values that can be left out at each end."""
    return (updates - 1) // 2


def _trimmed(sections: Sequence[Section], trim: int) -> list[float]:
    """Write the trimmed means of all sections. Return the share of each update's values that was trimmed."""
    counts = sum(trimmed_mean(values, trim, out) for values, out in sections)
    numbers = sum(out.numel() for _, out in sections)
    return [count / max(1, numbers) for count in torch.as_tensor(counts).tolist()]


def _square_distances(sections: Sequence[Section]) -> Tensor:
    """Return the squared Euclidean distances between all pairs of updates, as a float64 matrix on the CPU.

    Differences are squared and summed directly: products of updates would cancel if they are alike, as weights are.
    """
    count = len(sections[0].values)
    total = torch.zeros(count * (count - 1) // 2, dtype=torch.float64)
    for values, out in sections:
        wide = torch.promote_types(out.dtype, torch.float32)
        step = DISTANCE_NUMBERS if out.device.type == "cpu" else 64 * DISTANCE_NUMBERS
        for start in range(0, out.numel(), step):
            rows = torch.stack([stream[start : start + step] for stream in values]).to(wide)
            total += torch.nn.functional.pdist(rows).double().square().cpu()
    matrix = torch.zeros(count, count, dtype=torch.float64)
    first, second = torch.triu_indices(count, count, offset=1)
    matrix[first, second] = matrix[second, first] = total
    return matrix


def _mean(chosen: Sequence[Tensor], out: Tensor) -> None:
    """Write the mean of streams into `out`. 16-bit floats are summed in float32."""
    if len(chosen) == 1:
        out.copy_(chosen[0])
        return
    wide = torch.promote_types(out.dtype, torch.float32)
    for start in range(0, out.numel(), step := DISTANCE_NUMBERS):
        total = torch.zeros_like(out[start : start + step], dtype=wide)
        for stream in chosen:
            total += stream[start : start + step]
        out[start : start + step].copy_(total / len(chosen))
