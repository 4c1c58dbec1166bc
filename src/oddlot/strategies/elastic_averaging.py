"""Elastic averaging SGD (EASGD): every worker keeps its own weights and pulls them towards the model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from oddlot.core.commands import Assign, Blend, Command, Keep, Release
from oddlot.core.events import Arrived, Event
from oddlot.core.strategy import Strategy, Traits, View
from oddlot.core.support.validation import AboveZero, AtLeastOne, Must, check_settings
from oddlot.core.tasks import NodeId

BETA = 0.9


@dataclass
class ElasticAveraging(Strategy):
    """Train separate weights on every worker, and move them and the model towards each other (EASGD).

    They move every `steps` local steps.

    With the worker's weights x and the model W, x <- x - rate (x - W) and W <- W + rate (x - W), both computed from
    the old values. When a worker is lost, so are its weights: its replacement starts from the model.

    Paper: Zhang, Choromanska, LeCun, "Deep Learning with Elastic Averaging SGD" (NIPS 2015), algorithm 1.
    """

    steps: AtLeastOne = 8
    """Local steps per task, each on one minibatch of the job (tau)."""
    rate: Annotated[float, Must("from 0 to 1", lambda rate: 0 <= rate <= 1)] | None = None
    """Moving rate (alpha), from 0 to 1. None: 0.9 divided by the number of workers, as in the paper."""
    deadline_seconds: AboveZero | None = None
    """Task timeout, in seconds, after which the samples go to another worker. None: estimated from each worker's speed.
    """

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        return Traits(
            local_steps=True,
            single_updates=True,
            task_samples=self.steps * batch_size,
            task_setting="steps",
        )

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Move the model and the sender's weights towards each other, and assign tasks to idle workers."""
        rate = BETA / max(1, len(view.nodes)) if self.rate is None else self.rate
        if isinstance(event, Arrived):
            yield Keep(view.version)
            yield Blend({event.update.id: rate})
            yield from self._assign(view, event.update.sender, rate, view.version)
            yield Release(view.version)
        if view.work_left:
            for node in view.idle:
                if not isinstance(event, Arrived) or node != event.update.sender:
                    yield from self._assign(view, node, rate)

    def _assign(self, view: View, node: NodeId, rate: float, version: int | None = None) -> Iterator[Command]:
        """Assign the next steps from the worker's own weights."""
        for _ in range(view.free(node)):
            samples = self.steps * view.batch
            yield Assign(node, samples, "weights", version, pull=rate, deadline=self.deadline_seconds)
