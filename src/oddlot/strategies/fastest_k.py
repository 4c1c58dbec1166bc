"""Straggler-tolerant rounds: wait for the first k results and move on."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from oddlot.core.commands import Command
from oddlot.core.events import Event
from oddlot.core.strategy import Strategy, Traits, View
from oddlot.core.tasks import UpdateId
from oddlot.core.validation import AtLeastOne, check_settings
from oddlot.strategies.support.fastest_rounds import check_enough, fastest


@dataclass
class FastestK(Strategy):
    """Step along the mean of the first k results of each round; the other tasks are cancelled.

    Cancelled samples go back and are leased again first, so nothing of an epoch is skipped. A round closes with
    fewer than k results when fewer workers are left.

    Paper: Kas Hanna et al., "Adaptive Distributed SGD for Fast Convergence in the Presence of Stragglers"
    (ICASSP 2020), section 2, with k fixed.
    """

    k: AtLeastOne = 2
    """how many results a round waits for"""
    samples: AtLeastOne | None = None
    """per task; None: the job's batch"""
    round: dict[UpdateId, int] = field(default_factory=dict)
    """state: the samples of every update of this round"""

    def __post_init__(self) -> None:
        check_settings(self)

    def validate(self, workers: int, metrics: Collection[str]) -> None:
        """UsageError: there will never be k workers."""
        check_enough(self.k, workers)

    def traits(self, batch_size: int) -> Traits:
        """Return what must be known before a run."""
        return Traits(updates=self.k, task_samples=self.samples or batch_size, task_setting="samples")

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect a round; close it at the k-th result."""
        yield from fastest(event, view, self.round, self.k, self.samples or view.batch)
