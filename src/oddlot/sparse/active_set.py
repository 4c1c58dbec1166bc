"""The active sets of a batch: the rows of the output layer that are computed for each example."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.errors import coded
from oddlot.sparse.kernels import choosing
from oddlot.sparse.labels import Labels
from oddlot.sparse.memory import check_memory
from oddlot.sparse.threads import Crew

BYTES_OF_A_SLOT = 40
"""Bytes of a slot: row, weight, logit and its gradient, and two copies of row, example and slot for the grouping."""


@dataclass
class Active:
    """Memory for the active sets of one batch. It grows as needed.

    Example e has the rows `rows[starts[e]:starts[e] + counts[e]]`: first its `labels[e]` labels, then found rows up to
    `sure[e]`, then randomly drawn rows, each of which represents `exp(log_weights[slot])` rows.
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
    """Gradient of the loss with respect to the logits."""
    losses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0, np.float64))
    given: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """Labels of all examples."""
    learns: bool = True
    """Whether this is a training batch."""

    def begin(self, crew: Crew, labels: Labels, most: int, marks: "Marks", learns: bool = True) -> None:
        """Start an active set for each example with its labels, and with room for `most` other rows.

        Raise MemoryError if they need too much memory, or more slots than 32 bits can count.
        """
        examples, self.given, self.learns = len(labels), labels.rows, learns
        width = labels.most + min(most, self.out_features)
        if examples != len(self.counts):
            self.counts, self.sure = np.empty(examples, np.int64), np.empty(examples, np.int64)
            self.losses = np.empty(examples)
        if (slots := examples * width) > len(self.rows):
            what = f"a batch of {examples:,} with {width:,} outputs each"
            check_memory(BYTES_OF_A_SLOT * slots, what)
            if slots > np.iinfo(np.int32).max:
                error = MemoryError(f"{what} needs more than 2**31 slots: use a smaller batch")
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
    """Marks of the last example that took each row, for each thread.

    They prevent duplicate rows in an active set, without being cleared for each example.
    """

    out_features: int
    seen: NDArray[np.int32] = field(init=False)
    next: int = 1

    def __post_init__(self) -> None:
        self.seen = np.zeros((0, self.out_features), np.int32)

    def of(self, parts: int, examples: int) -> tuple[NDArray[np.int32], int]:
        """Return the marks, [parts, out_features], and the mark of the first of these examples."""
        if len(self.seen) != parts or self.next + examples > np.iinfo(np.int32).max:
            self.seen, self.next = np.zeros((parts, self.out_features), np.int32), 1
        mark, self.next = self.next, self.next + examples
        return self.seen, mark
