"""Rows drawn by their label frequency: a learned unigram distribution."""

from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.active_set import ActiveSet
from oddlot.sparse.frequency_draws import FrequencyDraws
from oddlot.sparse.sampler import Refresh, check_refresh
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import check_number, check_whole


@dataclass
class Unigram:
    """Rows drawn in proportion to their label frequency, for every example.

    Most examples are compared with frequent labels. Each of these then represents few other rows, as in sampled softmax
    with a unigram distribution (Bengio, Senécal, 2008).
    """

    draws: int = 300
    """Draws per example."""
    frequency: float = 0.8
    """Share of the draws by label frequency; the others are uniform."""
    group: int = 1
    """Number of consecutive examples that share their rows."""
    refresh: Refresh = field(default_factory=Refresh)
    """When the label frequencies are updated."""
    counts: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    """Label frequency of each row. Default: counted during training."""

    def __post_init__(self) -> None:
        check_whole(draws=self.draws, group=self.group)
        check_number(0, 1, frequency=self.frequency)
        check_refresh(self.refresh)
        self.refresh = copy(self.refresh)  # it has state, and may be shared with another sampler
        self.frequencies = FrequencyDraws(self.frequency, self.counts)

    def most(self, out_features: int) -> int:
        """Return the largest number of rows for an example."""
        return min(self.draws, out_features)

    def prepare(self, crew: Crew, weight: NDArray[Any], bias: NDArray[Any], step: int, seed: int) -> None:
        """Prepare for a batch, and rebuild the index if it is outdated."""
        if self.refresh.due(step, len(weight)):
            self.frequencies.count_up(len(weight), self.draws)

    def choose(self, crew: Crew, hidden: NDArray[Any], active: ActiveSet, seed: int) -> None:
        """Add the chosen rows to every example of the batch."""
        self.frequencies.fill_up(crew, active, seed, self.group, self.draws >= active.out_features)

    def forget(self) -> None:
        """Discard the index, because the rows were replaced."""
        self.refresh.forget()
        self.frequencies.forget()
