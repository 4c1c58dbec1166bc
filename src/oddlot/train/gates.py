"""Rejects updates that are far larger than recent ones: one of them can undo what was learned."""

from bisect import bisect_left, insort
from collections import deque
from math import isfinite, sqrt

import torch
from torch import Tensor

from oddlot.core.errors import Refusal
from oddlot.core.tasks import Kind, UpdateId
from oddlot.train.flat_buffer import FlatBuffer
from oddlot.train.vector_ops import chunks

MAX_UPDATE_RATIO = 1000.0
"""the default: of an update's norm to the median of recent ones"""
MIN_UPDATES, RECENT_UPDATES = 20, 100
"""the guard is off until there are so many norms; the median is that of so many"""
USUAL_FACTOR = 10.0
"""an update is accepted within this factor of the largest accepted norm, or of both norms that were rejected last"""


class Guard:
    """Compares the norm of each update with the running median of its kind.

    The norm is the Euclidean one of the trainable parameters: of a gradient or delta itself, of weights that of the
    difference from the version that the task started from. A median of 0 switches the guard off, and so does
    `max_ratio=None`.

    A norm that is large for good reason is accepted: one that is within a factor of 10 of the largest so far (a rare
    sample, when most are fitted), and the third in a row of one size (a learning rate that has risen).
    """

    def __init__(self, max_ratio: float | None = MAX_UPDATE_RATIO) -> None:
        self.max_ratio = max_ratio
        self._recent: dict[Kind, deque[float]] = {}
        self._sorted: dict[Kind, list[float]] = {}
        self._largest: dict[Kind, float] = {}
        self._rejected: dict[Kind, deque[float]] = {}

    def check(self, update: UpdateId, kind: Kind, norm: float) -> None:
        """Note the norm of an update. Refusal: it is too large, and is not noted."""
        recent = self._recent.setdefault(kind, deque(maxlen=RECENT_UPDATES))
        ordered = self._sorted.setdefault(kind, [])
        median = ordered[len(ordered) // 2] if len(ordered) >= MIN_UPDATES else 0.0
        if self.max_ratio is not None and median and not norm <= self.max_ratio * median:
            self._reject_unusual(update, kind, norm, median)
        self._largest[kind] = max(norm, self._largest.get(kind, 0.0))
        if len(recent) == RECENT_UPDATES:
            del ordered[bisect_left(ordered, recent[0])]
        recent.append(norm)
        insort(ordered, norm)

    def _reject_unusual(self, update: UpdateId, kind: Kind, norm: float, median: float) -> None:
        """Refusal: neither accepted nor rejected norms were nearly as large."""
        rejected = self._rejected.setdefault(kind, deque(maxlen=2))
        repeated = len(rejected) == 2 and all(
            norm / USUAL_FACTOR <= each <= norm * USUAL_FACTOR for each in rejected
        )
        rejected.append(norm)
        if repeated or norm <= USUAL_FACTOR * self._largest[kind]:
            return
        told = (
            f"update {update} has the norm {norm:.3g}, {norm / median:.3g} times the median of recent ones "
            "(max_update_ratio=None accepts any)"
        )
        raise Refusal(told, "update_too_large", update=update, norm=norm, median=median)


def norm_of(flat: FlatBuffer, base: FlatBuffer | None = None) -> float:
    """The Euclidean norm of the trainable parameters, or of their difference from `base`.

    It is not finite if one of them is not.
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
    """The sum of squares, in float64 where that is `wide`: squares of large numbers overflow sooner than they do."""
    dtype = torch.float64 if wide or section.dtype == torch.float64 else torch.float32
    if other is None and not wide:
        return float(torch.linalg.vector_norm(section, dtype=dtype)) ** 2
    total = 0.0
    for span in chunks(section.numel(), section.device):
        part = section[span].to(dtype)
        total += float(torch.linalg.vector_norm(part if other is None else part - other[span])) ** 2
    return total
