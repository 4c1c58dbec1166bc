"""Straggler-tolerant rounds that wait for the first k updates."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from oddlot.core.commands import Command
from oddlot.core.events import Event
from oddlot.core.strategy import Strategy, Traits, View
from oddlot.core.support.validation import AtLeastOne, check_settings
from oddlot.core.tasks import UpdateId
from oddlot.strategies.support.fastest_rounds import check_enough, fastest


@dataclass
class FastestK(Strategy):
    """Apply the mean of the first k updates of each round, and cancel the other tasks.

    Samples of cancelled tasks are assigned again, so no sample of an epoch is skipped. When fewer than k workers are
    left, a round waits for all of them.

    Paper: Kas Hanna et al., "Adaptive Distributed SGD for Fast Convergence in the Presence of Stragglers"
    (ICASSP 2020), section 2, with k fixed.
    """

    k: AtLeastOne = 2
    """Number of updates that a round waits for."""
    samples: AtLeastOne | None = None
    """Samples per task. None: the job's batch size."""
    round: dict[UpdateId, int] = field(default_factory=dict)
    """State: samples of each update of this round."""

    def __post_init__(self) -> None:
        check_settings(self)

    def validate(self, workers: int, metrics: Collection[str]) -> None:
        """Raise UsageError if there are fewer than k workers."""
        check_enough(self.k, workers)

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        return Traits(updates=self.k, task_samples=self.samples or batch_size, task_setting="samples")

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect updates, and close the round at the k-th."""
        yield from fastest(event, view, self.round, self.k, self.samples or view.batch)
