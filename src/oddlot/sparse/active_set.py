"""The active set of a batch: which rows of the output layer are computed for which example."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.errors import coded
from oddlot.sparse.kernels import choosing
from oddlot.sparse.labels import Labels
from oddlot.sparse.memory import check_memory
from oddlot.sparse.threads import Crew

BYTES_OF_A_SLOT = 40
"""row, weight, logit and its gradient; while they are grouped by row, twice the row, the example and the slot"""


@dataclass
class Active:
    """Room for the active sets of one batch, which grows as needed.

    Example e has the rows `rows[starts[e]:starts[e] + counts[e]]`: first its `labels[e]` labels, then what was found,
    up to `sure[e]`, then what was taken by chance, each of which stands for `exp(log_weights[slot])` rows.
    """

    out_features: int
    starts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    sure: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    log_weights: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    logits: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    deltas: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """of the loss by the logits"""
    losses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0, np.float64))
    given: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """the labels of all examples, one after the other"""
    learns: bool = True
    """whether somebody is to learn from the batch, or it is only measured"""

    def begin(self, crew: Crew, labels: Labels, most: int, marks: "Marks", learns: bool = True) -> None:
        """An active set for each example: of its labels, with room for `most` other rows. MemoryError: they need more
        than this machine has, or are more than 32 bits can tell apart."""
        examples, self.given, self.learns = len(labels), labels.rows, learns
        width = labels.most + min(most, self.out_features)
        if examples != len(self.counts):
            self.counts, self.sure = np.empty(examples, np.int64), np.empty(examples, np.int64)
            self.losses = np.empty(examples)
        if (slots := examples * width) > len(self.rows):
            what = f"a batch of {examples:,} with {width:,} outputs each"
            check_memory(BYTES_OF_A_SLOT * slots, what)
            if slots > np.iinfo(np.int32).max:
                error = MemoryError(f"{what} is more than 32 bits can tell apart")
                raise coded(error, "too_many_slots", examples=examples, each=width)
            self.rows = np.empty(slots, np.int32)
            self.logits, self.deltas, self.log_weights = (np.empty(slots, np.float32) for _ in range(3))
        self.starts = np.arange(examples) * width
        self.seen, self.mark = marks.of(crew.parts, examples)
        crew.share(
            choosing.take_labels, labels.starts, labels.rows, self.starts, self.rows, self.counts, self.seen, self.mark
        )  # fmt: skip
        self.labels = self.counts.copy()


@dataclass
class Marks:
    """Which example has taken a row last, for each thread: rows are taken once, and nothing is cleared."""

    out_features: int
    seen: NDArray[np.int32] = field(init=False)
    next: int = 1

    def __post_init__(self) -> None:
        self.seen = np.zeros((0, self.out_features), np.int32)

    def of(self, parts: int, examples: int) -> tuple[NDArray[np.int32], int]:
        """The marks, and the one of the first of so many examples."""
        if len(self.seen) != parts or self.next + examples > np.iinfo(np.int32).max:
            self.seen, self.next = np.zeros((parts, self.out_features), np.int32), 1
        mark, self.next = self.next, self.next + examples
        return self.seen, mark
