"""Asynchronous SGD: nobody waits for anybody."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from oddlot.core.commands import Command, Drop, Step
from oddlot.core.events import Arrived, Event
from oddlot.core.strategy import Strategy, Traits, View, assign_all, assign_idle
from oddlot.core.validation import AtLeastOne, NotNegative, at_least, check_settings


@dataclass
class Asynchronous(Strategy):
    """Step along every gradient as it arrives, and send its worker on with the new weights.

    A gradient that is s versions late counts (1 + s) ** -damping: 1 is close to the 1/s rule of the paper, and n
    workers then move the model as far as one; 0 trusts all alike, and diverges where there are many. One later than
    `max_staleness` is thrown away, and its samples are computed again. The share is in proportion to the samples, so
    a partial task moves the model less.

    Paper: Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning" (IJCAI 2016), equations 4 and 6.
    """

    samples: AtLeastOne | None = None
    """per task; None: the job's batch"""
    damping: NotNegative = 1.0
    """the power with which an update's share falls with its staleness"""
    max_staleness: Annotated[int, at_least(0)] | None = None
    """in versions; None: nothing is too late"""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return what must be known before a run."""
        return Traits(updates=1, task_samples=self.samples or batch_size, task_setting="samples")

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Merge what arrives and keep everybody busy."""
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
