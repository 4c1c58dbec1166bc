"""The labels of a batch, and its active sets: the rows of the output layer to compute for each example."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oddlot.sparse.errors import check_memory, coded
from oddlot.sparse.kernels import row_selection
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import as_array, checked_starts


@dataclass(frozen=True)
class Labels:
    """The labels of a batch. Example e has the labels `rows[starts[e]:starts[e + 1]]`."""

    starts: NDArray[np.int64]
    rows: NDArray[np.int32]

    @classmethod
    def of(cls, given: Any, out_features: int) -> "Labels":
        """Read a tensor of labels or the arrays (starts, rows) of a CSR matrix.

        A 1-D tensor has one label per example (-1: no label). A 2-D tensor has a row of labels per example, padded with
        -1. Raise ValueError if a label is not below `out_features`, or if arrays are not from a CSR matrix.
        """
        if isinstance(given, tuple):
            rows = as_array(given[-1], "labels") if len(given) == 2 else None
            if rows is None or rows.ndim != 1:
                error = ValueError(
                    "labels as a tuple must be (starts, labels), two 1-D arrays of whole numbers"
                )
                raise coded(error, "not_1d_integers", name="labels")
            starts = checked_starts(given[0], len(rows), "labels")
        else:
            table = _table(given)
            there = table != -1
            starts, rows = np.concatenate([[0], np.cumsum(there.sum(1))]), table[there]
        if rows.dtype.kind not in "iu" and rows.size:
            error = ValueError(f"labels must be whole numbers, not of dtype {rows.dtype}")
            raise coded(error, "wrong_dtype", name="labels", dtype=str(rows.dtype))
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < out_features:
            wrong = int(rows.min()) if rows.min() < 0 else int(rows.max())
            message = f"label {wrong} is out of range: the outputs are 0 to {out_features - 1:,}"
            raise coded(ValueError(message), "out_of_range", name="labels", given=wrong, size=out_features)
        return cls(starts.astype(np.int64), rows.astype(np.int32))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def most(self) -> int:
        """Largest number of labels of an example."""
        return int(np.diff(self.starts).max(initial=0))


def _table(given: Any) -> NDArray[Any]:
    """Return labels as a table with a row per example. Raise ValueError for multi-hot labels."""
    try:
        table: NDArray[Any] = torch.as_tensor(given, device="cpu").numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"labels must be whole numbers, as a tensor or as (starts, labels): {error}"
        raise coded(ValueError(message), "not_an_array", name="labels", reason=str(error)) from None
    if table.ndim not in (1, 2):
        message = f"labels have {table.ndim} dimensions: use 1 (one label each) or 2 (a row of labels each)"
        raise coded(ValueError(message), "wrong_shape", name="labels", shape=table.shape)
    table = table[:, None] if table.ndim == 1 else table
    if table.size and ((table == 0).sum(1) > 1).all():
        wanted = "pass the indices of each example's labels, padded with -1"
        message = "labels look like zeros and ones for each output, because label 0 occurs twice in every row"
        raise coded(ValueError(f"{message}: {wanted}"), "zeros_and_ones", name="labels", shape=table.shape)
    return table


BYTES_OF_A_SLOT = 40
"""Bytes per slot: row, weight, logit and its gradient, and two copies of row, example and slot for grouping."""


@dataclass
class ActiveSet:
    """Memory for the active sets of one batch. It grows as needed.

    Example e has the rows `rows[starts[e]:starts[e] + counts[e]]`: first its `labels[e]` labels, then found rows up to
    `sure[e]`, then randomly drawn rows. Each drawn row represents `exp(log_weights[slot])` rows.
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
        """Start the active set of each example with its labels, and reserve memory for `most` other rows.

        Raise MemoryError if there is not enough memory, or if 32 bits cannot count the slots.
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
            row_selection.take_labels, labels.starts, labels.rows, self.starts, self.rows, self.counts,
            self.seen, self.mark,
        )  # fmt: skip
        self.labels = self.counts.copy()


@dataclass
class Marks:
    """The last example that took each row, for each thread.

    Marks prevent duplicate rows in an active set without clearing a table for each example.
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
