"""Rows by chance, those more often that are labels more often: a learned unigram distribution."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.active import Active
from oddlot.sparse.checks import check_number, check_whole
from oddlot.sparse.kernels import choosing
from oddlot.sparse.sampler import Refresh
from oddlot.sparse.samplers.uniform import fill_up
from oddlot.sparse.threads import Crew

LIKELIEST = 1 - 1e-6
"""that a draw is one row"""


@dataclass
class Unigram:
    """The rows of `draws` draws for every example; all, where there are no more.

    The share `frequency` of the draws is a row as often as it has been a label so far, the rest are all alike. So rows
    that are likely for anybody stand for few others each, as in sampled softmax by unigrams (Bengio, Senécal, 2008). A
    row that a draw is with the chance q stands for 1 / (1 - (1 - q) ** draws), so that the sum over all rows is
    estimated without bias.
    """

    draws: int = 300
    frequency: float = 0.8
    group: int = 1
    """so many examples that follow each other draw the same rows"""
    refresh: Refresh = field(default_factory=Refresh)
    """when labels are counted up"""
    counts: NDArray[np.int64] | None = field(init=False, repr=False, compare=False, default=None)
    """of each row as a label"""

    def __post_init__(self) -> None:
        check_whole(draws=self.draws, group=self.group)
        check_number(0, 1, frequency=self.frequency)

    def most(self, out_features: int) -> int:
        return min(self.draws, out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        if self.refresh.due(step, len(weight)):
            self.count_up(len(weight), self.draws)

    def choose(self, crew: Crew, hidden: NDArray[Any], active: Active, seed: int) -> None:
        self.fill_up(crew, active, self.draws, seed, self.draws >= active.out_features)

    def forget(self) -> None:
        self.refresh.forget()
        self.counts = None

    def count_up(self, out_features: int, draws: int) -> None:
        """Make the table for so many draws anew, from the labels so far."""
        if self.counts is None:
            self.counts = np.zeros(out_features, np.int64)
        total = self.counts.sum()
        frequency = self.frequency if total else 0.0
        chances = (1 - frequency) / out_features + frequency * self.counts / max(1, total)
        self.accept, self.alias = np.empty(out_features, np.float32), np.empty(out_features, np.int32)
        choosing.make_alias(chances, self.accept, self.alias)
        likely = np.minimum(chances, LIKELIEST)
        self.row_weights = (-np.log(-np.expm1(max(1, draws) * np.log1p(-likely)))).astype(np.float32)

    def fill_up(self, crew: Crew, active: Active, draws: int, seed: int, alike: bool) -> None:
        """What was found is sure; more rows by so many draws or, all `alike`, so many rows. Labels are noted."""
        assert self.counts is not None, "which `count_up` has made"
        if active.learns:
            np.add.at(self.counts, active.given, 1)
        if alike or not self.frequency:
            fill_up(crew, active, draws, seed, self.group)
            return
        active.sure[:] = active.counts
        crew.share(
            choosing.take_by_frequency, draws, active.starts, active.rows, active.counts, active.log_weights,
            self.accept, self.alias, self.row_weights, active.seen, active.mark, seed, self.group,
        )  # fmt: skip
