"""Rows by chance, those more often that are labels more often: a learned unigram distribution."""

from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.active_set import Active
from oddlot.sparse.frequency_draws import Frequencies
from oddlot.sparse.sampler import Refresh, check_refresh
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import check_number, check_whole


@dataclass
class Unigram:
    """The rows of `draws` draws for every example; all, where there are no more.

    The share `frequency` of the draws is a row as often as it has been a label so far, the rest are all alike. So the
    rows that most examples are compared with stand for few others each, as in sampled softmax by unigrams (Bengio,
    Senécal, 2008).
    """

    draws: int = 300
    frequency: float = 0.8
    group: int = 1
    """so many examples that follow each other draw the same rows"""
    refresh: Refresh = field(default_factory=Refresh)
    """when labels are counted up"""
    counts: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    """how often each row is a label, where that is known; None: it is counted as labels come"""

    def __post_init__(self) -> None:
        check_whole(draws=self.draws, group=self.group)
        check_number(0, 1, frequency=self.frequency)
        check_refresh(self.refresh)
        self.refresh = copy(self.refresh)  # which counts: it may be another sampler's too
        self.frequencies = Frequencies(self.frequency, self.counts)

    def most(self, out_features: int) -> int:
        return min(self.draws, out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        if self.refresh.due(step, len(weight)):
            self.frequencies.count_up(len(weight), self.draws)

    def choose(self, crew: Crew, hidden: NDArray[Any], active: Active, seed: int) -> None:
        self.frequencies.fill_up(crew, active, seed, self.group, self.draws >= active.out_features)

    def forget(self) -> None:
        self.refresh.forget()
        self.frequencies.forget()
