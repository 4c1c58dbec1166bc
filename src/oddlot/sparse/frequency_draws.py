"""Random draws of rows, uniform or by label frequency. They represent the rows that were not found."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.active_set import ActiveSet
from oddlot.sparse.errors import coded, invalid_value
from oddlot.sparse.kernels import row_selection
from oddlot.sparse.threads import Crew

LIKELIEST = 1 - 1e-6
"""Largest probability that a draw is a given row."""


def fill_up(crew: Crew, active: ActiveSet, count: int, seed: int, group: int = 1) -> None:
    """Mark the rows so far as found, and add `count` uniform draws, shared by `group` consecutive examples."""
    active.sure[:] = active.counts
    crew.share(
        row_selection.take_by_chance, count, active.starts, active.rows, active.counts, active.log_weights,
        active.out_features, active.seen, active.mark, seed, group,
    )  # fmt: skip


def _checked_counts(known: Any) -> NDArray[np.int64]:
    """Return label frequencies. Raise ValueError if they are invalid."""
    counts = np.asarray(known)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (len(counts) and counts.min() < 0):
        must = "label frequencies of all rows: a 1-D array of whole numbers of at least 0"
        raise invalid_value("counts", known, must)
    return counts.astype(np.int64)


class FrequencyDraws:
    """Draws of rows: the given share by label frequency (counted, or `known`), the others uniform.

    A row with the probability q in one draw represents 1 / (1 - (1 - q) ** draws) rows. The estimate of the sum over
    all rows is therefore unbiased.
    """

    def __init__(self, share: float, known: Any = None) -> None:
        self.share, self.known = share, None if known is None else _checked_counts(known)
        self.counts = self.known
        """Label frequency of each row."""
        self.draws = -1
        """Number of draws that the table was made for."""

    def forget(self) -> None:
        """Discard counted frequencies and their table."""
        if self.known is None:
            self.counts, self.draws = None, -1

    def count_up(self, out_features: int, draws: int) -> None:
        """Make the table for this number of draws from the current frequencies."""
        if self.counts is None:
            self.counts = np.zeros(out_features, np.int64)
        if (given := len(self.counts)) != out_features:
            error = ValueError(f"counts has {given:,} rows, but the layer has {out_features:,}")
            raise coded(error, "different_lengths", name="counts", given=given, expected=out_features)
        if self.known is not None and self.draws == draws:
            return
        total = self.counts.sum()
        share = self.share if total else 0.0
        chances = (1 - share) / out_features + share * self.counts / max(1, total)
        self.accept, self.alias = np.empty(out_features, np.float32), np.empty(out_features, np.int32)
        row_selection.make_alias(chances, self.accept, self.alias)
        likely = np.minimum(chances, LIKELIEST)
        self.draws = draws
        self.row_weights = (-np.log(-np.expm1(max(1, draws) * np.log1p(-likely)))).astype(np.float32)

    def fill_up(self, crew: Crew, active: ActiveSet, seed: int, group: int, alike: bool) -> None:
        """Mark the rows so far as found, and add draws or, if `alike`, uniform rows. Count the labels."""
        assert self.counts is not None, "which `count_up` has made"
        if active.learns and self.known is None:
            np.add.at(self.counts, active.given, 1)
        if alike or not self.share:
            fill_up(crew, active, self.draws, seed, group)
            return
        active.sure[:] = active.counts
        crew.share(
            row_selection.take_by_frequency, self.draws, active.starts, active.rows, active.counts, active.log_weights,
            self.accept, self.alias, self.row_weights, active.seen, active.mark, seed, group,
        )  # fmt: skip
