"""Elastic averaging: everybody keeps weights of its own, tied to the model by a spring."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from oddlot.core.commands import Assign, Blend, Command, Keep, Release
from oddlot.core.events import Arrived, Event
from oddlot.core.strategy import Strategy, Traits, View
from oddlot.core.tasks import NodeId
from oddlot.core.validation import AboveZero, AtLeastOne, Must, check_settings

BETA = 0.9


@dataclass
class ElasticAveraging(Strategy):
    """Everybody trains weights x of its own for `steps` steps at a time; then x and the model W move towards each
    other: x <- x - rate (x - W) and W <- W + rate (x - W), both from what they were before.

    A worker's own weights are gone with it: its successor begins at the model.

    Paper: Zhang, Choromanska, LeCun, "Deep Learning with Elastic Averaging SGD" (NIPS 2015), algorithm 1.
    """

    steps: AtLeastOne = 8
    """local steps of one job's batch each, between two meetings (tau)"""
    rate: Annotated[float, Must("from 0 to 1", lambda rate: 0 <= rate <= 1)] | None = None
    """how far both move (alpha); None: 0.9 over the number of workers, as in the paper"""
    deadline_seconds: AboveZero | None = None
    """after which a task is given to another worker; None: learnt from each worker's speed"""

    def __post_init__(self) -> None:
        check_settings(self)

    def traits(self, batch_size: int) -> Traits:
        """Return what must be known before a run."""
        return Traits(local_steps=True, task_samples=self.steps * batch_size, task_setting="steps")

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Move the model towards what arrives, its sender towards what the model was, and keep everybody busy."""
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
        """The next steps, from the worker's own weights."""
        for _ in range(view.free(node)):
            samples = self.steps * view.batch
            yield Assign(node, samples, "weights", version, pull=rate, deadline=self.deadline_seconds)
