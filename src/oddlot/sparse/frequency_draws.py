"""Rows by chance for what was not found: all alike, or those more often that are labels more often."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.active_set import Active
from oddlot.sparse.errors import coded, invalid_value
from oddlot.sparse.kernels import choosing
from oddlot.sparse.threads import Crew

LIKELIEST = 1 - 1e-6
"""that a draw is one row"""


def fill_up(crew: Crew, active: Active, count: int, seed: int, group: int = 1) -> None:
    """What was found is sure; so many more rows, all alike, the same for `group` examples that follow each other."""
    active.sure[:] = active.counts
    crew.share(
        choosing.take_by_chance, count, active.starts, active.rows, active.counts, active.log_weights,
        active.out_features, active.seen, active.mark, seed, group,
    )  # fmt: skip


def _checked_counts(known: Any) -> NDArray[np.int64]:
    """ValueError: they cannot be how often each row is a label."""
    counts = np.asarray(known)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or (len(counts) and counts.min() < 0):
        must = "how often each row is a label: a 1-D array of whole numbers, none below 0"
        raise invalid_value("counts", known, must)
    return counts.astype(np.int64)


class Frequencies:
    """Draws of rows, of which the given share goes by how often a row has been a label so far, the rest are all alike;
    or by how often it is one, where that is `known`.

    A row that a draw is with the chance q stands for 1 / (1 - (1 - q) ** draws), so that the sum over all rows is
    estimated without bias.
    """

    def __init__(self, share: float, known: Any = None) -> None:
        self.share, self.known = share, None if known is None else _checked_counts(known)
        self.counts = self.known
        """of each row as a label"""
        self.draws = -1
        """for which the table is"""

    def forget(self) -> None:
        """What was counted, and the table of that."""
        if self.known is None:
            self.counts, self.draws = None, -1

    def count_up(self, out_features: int, draws: int) -> None:
        """Make the table for so many draws, of the labels so far."""
        if self.counts is None:
            self.counts = np.zeros(out_features, np.int64)
        if (given := len(self.counts)) != out_features:
            error = ValueError(f"labels were counted for {given:,} rows, of {out_features:,} that there are")
            raise coded(error, "different_lengths", name="counts", given=given, expected=out_features)
        if self.known is not None and self.draws == draws:
            return
        total = self.counts.sum()
        share = self.share if total else 0.0
        chances = (1 - share) / out_features + share * self.counts / max(1, total)
        self.accept, self.alias = np.empty(out_features, np.float32), np.empty(out_features, np.int32)
        choosing.make_alias(chances, self.accept, self.alias)
        likely = np.minimum(chances, LIKELIEST)
        self.draws = draws
        self.row_weights = (-np.log(-np.expm1(max(1, draws) * np.log1p(-likely)))).astype(np.float32)

    def fill_up(self, crew: Crew, active: Active, seed: int, group: int, alike: bool) -> None:
        """What was found is sure; more rows by the draws or, all `alike`, so many rows. Labels are counted."""
        assert self.counts is not None, "which `count_up` has made"
        if active.learns and self.known is None:
            np.add.at(self.counts, active.given, 1)
        if alike or not self.share:
            fill_up(crew, active, self.draws, seed, group)
            return
        active.sure[:] = active.counts
        crew.share(
            choosing.take_by_frequency, self.draws, active.starts, active.rows, active.counts, active.log_weights,
            self.accept, self.alias, self.row_weights, active.seen, active.mark, seed, group,
        )  # fmt: skip
