"""EventGraD: peers on a ring send the layers that have changed enough to their neighbors."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

from oddlot.core.commands import Average, Command, Complete, Drop, Send, Step
from oddlot.core.events import Arrived, Changed, Event, ModelReceived, PeerJoined, PeerLost
from oddlot.core.peers import Drift, PeerModel
from oddlot.core.strategy import STATE, Strategy, Traits, View, assign_idle
from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import NotNegative, at_least, check_settings
from oddlot.core.tasks import NodeId
from oddlot.strategies.support.topologies import check_topology, ring_neighbors


@dataclass
class SentLayer:
    """State of one layer at the sender."""

    norm: float = 0.0
    """Norm when it was last sent."""
    threshold: float = 0.0
    """Minimum change of the norm to send it again."""
    slope: float = 0.0
    """Change of the norm per step at the last send."""
    steps: int = 0
    """Steps since it was last sent."""


@dataclass
class EventGrad(Strategy):
    """Train on every peer, and send layers that have changed enough to both neighbors on a ring (EventGraD).

    A layer is one parameter tensor. A peer sends it when its norm has changed by at least a threshold since it was last
    sent. The threshold is the mean slope of the norm at the last two sends, and is multiplied by `horizon` at every
    step. Each peer keeps the last received layers of its neighbors. At every step, it replaces its weights by the mean
    of its own and its neighbors' layers. It then takes the optimizer step with the gradient of the weights before the
    average. No peer waits for another. Momentum is not averaged.

    Paper: Ghosh, Aquino, Gupta, "EventGraD: Event-triggered communication in parallel machine learning"
    (Neurocomputing 2021), algorithm 1. With two peers, their models count alike; the authors' code counts the
    neighbor twice.
    """

    horizon: NotNegative = 1.0
    """Factor on the threshold of each layer at every step. 0: all layers are sent at every step."""
    threshold: NotNegative | None = None
    """Constant threshold of all layers. None: each layer has a threshold of its own."""
    warmup_steps: Annotated[int, at_least(0)] = 30
    """Step from which a peer sends changed layers only. Before, it sends all."""
    steps: int = field(default=0, metadata=STATE)
    """Steps so far."""
    layers: list[SentLayer] = field(default_factory=list)
    """State of the layers, in the layout's order."""
    sent_to: list[NodeId] = field(default_factory=list)
    """Neighbors that were sent all layers."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.threshold is not None and self.horizon != 1:
            text = f"horizon = {self.horizon:g} has no effect on a constant threshold: set one of them"
            raise UsageError(text, "not_one_of", "horizon", given=["horizon", "threshold"])

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        return Traits(mesh=True, task_samples=batch_size, task_setting="batch_size", updates=1)

    def validate(self, workers: int, metrics: Collection[str]) -> None:
        """Raise UsageError if there are too few peers."""
        check_topology("ring", workers)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Average, step, send the changed layers, and compute the next gradient."""
        match event:
            case Arrived(update):
                yield from self._average(view)
                yield Step({update.id: 1.0}, drift="layers")
                self.steps += 1
                return  # `Changed` follows
            case Changed(drift=Drift() as drift):
                yield from self._send(view, drift)
            case ModelReceived(model):
                yield from self._keep(model, view)
            case PeerJoined():
                yield from self._drop(set(view.peers) - set(ring_neighbors(view)), view)
            case PeerLost(peer):
                self.sent_to = [one for one in self.sent_to if one != peer]
                yield from self._drop({peer}, view)
        yield from assign_idle(view, view.batch)

    def _average(self, view: View) -> Iterator[Command]:
        """Average the copies of the neighbors. For a neighbor without a copy, use the peer's own weights."""
        neighbors = ring_neighbors(view)
        copies = [one.id for one in view.models.values() if one.sender in neighbors]
        if copies:
            yield Average(dict.fromkeys(copies, 1 / (1 + len(neighbors))), keep=True)

    def _send(self, view: View, drift: Drift) -> Iterator[Command]:
        """Send the layers that have changed enough; all at the start and after the ring has changed."""
        neighbors = ring_neighbors(view)
        is_new = not set(neighbors) <= set(self.sent_to)
        due = self._changed_layers(drift, send_all=is_new or self.steps + 1 < self.warmup_steps)
        self.sent_to = list(neighbors)
        if due:
            layers = None if len(due) == len(drift.layers) else tuple(due)
            for neighbor in neighbors:
                yield Send(neighbor, layers=layers)

    def _changed_layers(self, drift: Drift, send_all: bool) -> list[int]:
        """Return the layers to send after a step, and adapt their thresholds."""
        self.layers = self.layers or [SentLayer() for _ in drift.layers]
        due = []
        for number, (layer, now) in enumerate(zip(self.layers, drift.layers, strict=True)):
            layer.steps += 1
            layer.threshold *= self.horizon
            change = abs(now.norm - layer.norm)
            if send_all or change >= (layer.threshold if self.threshold is None else self.threshold):
                slope = change / layer.steps
                self.layers[number] = SentLayer(now.norm, (layer.slope + slope) / 2, slope)
                due.append(number)
        return due

    def _keep(self, model: PeerModel, view: View) -> Iterator[Command]:
        """Keep one copy of a peer: the newest layers that it has sent."""
        if model.sender not in view.peers:  # it has left
            yield Drop(model.id)
            return
        copies = [one for one in view.models.values() if one.sender == model.sender]
        copies.sort(key=lambda one: one.samples)  # a message may be late
        for older, newer in pairwise(copies):
            yield Complete(newer.id, older.id)

    def _drop(self, peers: Collection[NodeId], view: View) -> Iterator[Command]:
        """Drop the copies of peers that are no longer neighbors."""
        for model in view.models.values():
            if model.sender in peers:
                yield Drop(model.id)
