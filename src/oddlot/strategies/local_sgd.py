"""Local SGD: several local steps between two merges."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from oddlot.core.commands import Command, Step
from oddlot.core.events import Arrived, Event
from oddlot.core.optimizers import SGD, Optimizer
from oddlot.core.strategy import Strategy, Traits, View, assign_all, assign_idle, shares_by_weight
from oddlot.core.support.validation import AtLeastOne, check_settings
from oddlot.core.tasks import UpdateId


@dataclass
class LocalSGD(Strategy):
    """Take `steps` local steps on every worker, then apply the mean of their weight differences (DiLoCo, FedAdam).

    Local steps use the job's optimizer; the hub steps with `server`. Weight differences are weighted by samples, or
    by the weights that the loss returns.

    - `server=SGD(lr=1.0)`, the default, averages the workers' weights.
    - `server=SGD(lr=0.7, momentum=0.9, nesterov=True)` with more local steps is DiLoCo.
    - `server=Adam(...)` is FedAdam.

    Papers: Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019), algorithm 1; Reddi et al.,
    "Adaptive Federated Optimization" (ICLR 2021), algorithm 1, for the server rule.
    """

    steps: AtLeastOne = 8
    """Local steps per round, each on one minibatch of the job."""
    server: Optimizer = field(default_factory=lambda: SGD(lr=1.0))
    """Optimizer at the hub for the mean weight difference."""
    round: dict[UpdateId, int] = field(default_factory=dict)
    """State: weight of each update of this round."""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        return Traits(
            server_optimizer=self.server,
            waits_for_all=True,
            local_steps=True,
            task_samples=self.steps * batch_size,
            task_setting="steps",
        )

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect updates, and close the round when no task is open."""
        samples = self.steps * view.batch
        if isinstance(event, Arrived):
            self.round[event.update.id] = event.update.weight_merged
        if not self.round:
            yield from assign_idle(view, samples, "delta")
        elif not view.tasks:
            yield Step(shares_by_weight(self.round))
            self.round.clear()
            yield from assign_all(view, samples, "delta")
