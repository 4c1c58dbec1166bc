"""Downpour SGD: replicas train on their own, and pour what they have changed into the model."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from oddlot.core.commands import Command, Step
from oddlot.core.events import Arrived, Event
from oddlot.core.optimizers import SGD, Optimizer
from oddlot.core.strategy import Strategy, Traits, View, assign_idle
from oddlot.core.validation import AboveZero, AtLeastOne, check_settings


@dataclass
class Downpour(Strategy):
    """Everybody takes `steps` steps at home from the newest weights; what they have changed is added to the model as
    it arrives, whole and however late it is.

    The default server rule (lr 1) adds it as it is, which is the paper's Downpour SGD where the job's optimizer at home
    is plain SGD and weights are fetched as often as gradients are pushed. With many workers the sum of what they add is
    too much, unless its learning rate, or the job's, is lowered (to 1 over the workers, say).

    Paper: Dean et al., "Large Scale Distributed Deep Networks" (NIPS 2012), section 4.1 and algorithm 7.1.
    """

    steps: AtLeastOne = 8
    """local steps of one job's batch each, between fetching and pushing (n_fetch = n_push)"""
    server: Optimizer = field(default_factory=lambda: SGD(lr=1.0))
    """the rule at the hub"""
    deadline_seconds: AboveZero | None = None
    """after which a task is given to another worker; None: learnt from each worker's speed"""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return what must be known before a run."""
        return Traits(
            server_optimizer=self.server,
            local_steps=True,
            task_samples=self.steps * batch_size,
            task_setting="steps",
        )

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Add what arrives, and keep everybody busy."""
        if isinstance(event, Arrived):
            yield Step({event.update.id: 1.0})
        yield from assign_idle(view, self.steps * view.batch, "delta", self.deadline_seconds)
