"""Synchronous data parallelism, as a baseline that tolerates lost workers."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from oddlot.core.commands import Command, Step
from oddlot.core.events import Arrived, Event
from oddlot.core.strategy import Strategy, Traits, View, assign_all, assign_idle, shares_by_weight
from oddlot.core.support.validation import AtLeastOne, check_settings
from oddlot.core.tasks import UpdateId


@dataclass
class Synchronous(Strategy):
    """Wait for every worker, then apply the mean gradient.

    Gradients are weighted by their samples, so the step is that of one large batch. A round closes when no task is
    open: it does not wait for workers that are lost or whose task timed out.

    Paper: Chen et al., "Revisiting Distributed Synchronous SGD" (2016), section 3 without backup workers.
    """

    samples: AtLeastOne | None = None
    """Samples per task. None: the job's batch size."""
    round: dict[UpdateId, int] = field(default_factory=dict)
    """State: weight of each update of this round."""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        return Traits(waits_for_all=True, task_samples=self.samples or batch_size, task_setting="samples")

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect updates, and close the round when no task is open."""
        samples = self.samples or view.batch
        if isinstance(event, Arrived):
            self.round[event.update.id] = event.update.weight_merged
        if not self.round:
            yield from assign_idle(view, samples)
        elif not view.tasks:
            yield Step(shares_by_weight(self.round))
            self.round.clear()
            yield from assign_all(view, samples)
