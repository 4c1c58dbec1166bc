"""Asynchronous SGD."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from oddlot.core.commands import Command, Drop, Step
from oddlot.core.events import Arrived, Event
from oddlot.core.strategy import Strategy, Traits, View, assign_all, assign_idle
from oddlot.core.support.validation import AtLeastOne, NotNegative, at_least, check_settings


@dataclass
class Asynchronous(Strategy):
    """Apply every gradient as it arrives. No worker waits for another.

    A gradient of staleness s is scaled by (1 + s) ** -`damping`. With 1, which is close to the paper's 1/s rule, n
    workers move the model about as far as one. With 0, training with many workers diverges unless the learning rate is
    low. Updates staler than `max_staleness` are dropped, and their samples are computed again. An update of a part of a
    task is scaled down in proportion to its samples.

    Paper: Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning" (IJCAI 2016), equations 4 and 6.
    """

    samples: AtLeastOne | None = None
    """Samples per task. None: the job's batch size."""
    damping: NotNegative = 1.0
    """Exponent of the staleness damping: an update of staleness s is scaled by (1 + s) ** -damping."""
    max_staleness: Annotated[int, at_least(0)] | None = None
    """Largest staleness of a merged update, in versions. None: no limit."""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        return Traits(
            updates=1,
            single_updates=True,
            task_samples=self.samples or batch_size,
            task_setting="samples",
        )

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Merge the update and assign tasks to idle workers."""
        samples = self.samples or view.batch
        match event:
            case Arrived(update):
                staleness = view.staleness(update)
                if self.max_staleness is not None and staleness > self.max_staleness:
                    yield Drop(update.id)
                    yield from assign_all(view, samples)
                else:
                    yield Step({update.id: update.samples / samples * (1 + staleness) ** -self.damping})
                    yield from assign_idle(view, samples)
            case _:
                yield from assign_idle(view, samples)
