"""Local SGD: many steps at home between two meetings."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from oddlot.core.commands import Command, Step
from oddlot.core.events import Arrived, Event
from oddlot.core.optimizers import SGD, Optimizer
from oddlot.core.strategy import Strategy, Traits, View, assign_all, assign_idle, shares_by_samples
from oddlot.core.tasks import UpdateId
from oddlot.core.validation import AtLeastOne, check_settings


@dataclass
class LocalSGD(Strategy):
    """Everybody takes `steps` steps with the job's local optimizer; the model moves by the server rule along the
    mean of start - end.

    With the default server rule (lr 1) the model becomes the average of the workers' models. Momentum and
    Nesterov at the server, with more local steps, give DiLoCo; Adam there gives FedAdam. Changes are weighted by
    their samples.

    Papers: Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019), algorithm 1; Reddi et al.,
    "Adaptive Federated Optimization" (ICLR 2021), algorithm 1, for the server rule.
    """

    steps: AtLeastOne = 8
    """local steps of one job's batch each"""
    server: Optimizer = field(default_factory=lambda: SGD(lr=1.0))
    """the rule at the hub: lr 1 is plain averaging; momentum 0.9 with nesterov is DiLoCo's"""
    round: dict[UpdateId, int] = field(default_factory=dict)
    """state: the samples of every update of this round"""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return what must be known before a run."""
        return Traits(
            server_optimizer=self.server,
            waits_for_all=True,
            local_steps=True,
            task_samples=self.steps * batch_size,
            task_setting="steps",
        )

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect a round; close it when nobody works any more."""
        samples = self.steps * view.batch
        if isinstance(event, Arrived):
            self.round[event.update.id] = event.update.samples
        if not self.round:
            yield from assign_idle(view, samples, "delta")
        elif not view.tasks:
            yield Step(shares_by_samples(self.round))
            self.round.clear()
            yield from assign_all(view, samples, "delta")
