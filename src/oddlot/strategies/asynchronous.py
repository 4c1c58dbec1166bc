"""Asynchronous SGD: nobody waits for anybody."""

from collections.abc import Iterable
from dataclasses import dataclass

from oddlot.core.checks import at_least, check_hints, not_negative
from oddlot.core.strategy import View, assign_all, assign_idle
from oddlot.core.words import Arrived, Command, Drop, Event, Step


@dataclass
class Asynchronous:
    """Step along every gradient as it arrives, and send its worker on with the new weights.

    A gradient that is s versions late counts (1 + s) ** -damping: 1 is close to the 1/s rule of the paper, and n
    workers then move the model as far as one; 0 trusts all alike, and diverges where there are many. One later than
    `max_staleness` is thrown away, and its samples are computed again. The share is in proportion to the samples, so
    a partial task moves the model less.

    Paper: Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning" (IJCAI 2016), equations 4 and 6.
    """

    samples: int | None = None
    """per task; None: the job's batch"""
    damping: float = 1.0
    """the power with which an update's share falls with its staleness"""
    max_staleness: int | None = None
    """in versions; None: nothing is too late"""

    def __post_init__(self) -> None:
        check_hints(self)
        at_least(1, samples=self.samples)
        at_least(0, max_staleness=self.max_staleness)
        not_negative(damping=self.damping)

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
