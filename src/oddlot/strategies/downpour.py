"""Downpour SGD: workers train independently and add their weight differences to the model."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from oddlot.core.commands import Command, Step
from oddlot.core.events import Arrived, Event
from oddlot.core.optimizers import SGD, Optimizer
from oddlot.core.strategy import Strategy, Traits, View, assign_idle
from oddlot.core.support.validation import AboveZero, AtLeastOne, check_settings


@dataclass
class Downpour(Strategy):
    """Add the weight difference of `steps` local steps to the model as it arrives, whatever its staleness.

    Each worker starts its steps from the newest weights. With the default `server` optimizer (lr 1) and plain SGD as
    the job's optimizer, this is the paper's Downpour SGD with n_fetch = n_push. With many workers, lower the learning
    rate of `server` or of the job, for example to 1 / (number of workers).

    Paper: Dean et al., "Large Scale Distributed Deep Networks" (NIPS 2012), section 4.1 and algorithm 7.1.
    """

    steps: AtLeastOne = 8
    """Local steps per task, each on one minibatch of the job (n_fetch = n_push)."""
    server: Optimizer = field(default_factory=lambda: SGD(lr=1.0))
    """Optimizer at the hub for the weight differences."""
    deadline_seconds: AboveZero | None = None
    """Task timeout, in seconds, after which the samples go to another worker. None: estimated from each worker's speed.
    """

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        return Traits(
            server_optimizer=self.server,
            local_steps=True,
            single_updates=True,
            task_samples=self.steps * batch_size,
            task_setting="steps",
        )

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Add the update and assign tasks to idle workers."""
        if isinstance(event, Arrived):
            yield Step({event.update.id: 1.0})
        yield from assign_idle(view, self.steps * view.batch, "delta", self.deadline_seconds)
