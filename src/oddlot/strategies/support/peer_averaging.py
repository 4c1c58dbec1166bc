"""Training with peers: local steps with exchanges of models in between. Shared by the gossip strategies."""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal

from oddlot.core import events
from oddlot.core.commands import Average, Command, DriftOf, Drop, Mark, Request, Send, Step, Wake
from oddlot.core.peers import PeerModel
from oddlot.core.strategy import STATE, Strategy, Traits, View, assign_idle
from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import AboveZero, Must, check_settings
from oddlot.core.tasks import NodeId
from oddlot.strategies.support.topologies import Topology, check_topology, partner, topology

Mode = Literal["pull", "push", "push_pull"]
Mixing = Literal["constant", "clock", "loss"]


def _one_of(*words: str) -> Must:
    return Must(f"one of {', '.join(words)}", lambda value: value in words)


MIN_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS = 2.0, 3600.0
"""Shortest and longest timeout of a request."""
MIN_WEIGHT = 2.0**-30
"""Sum weight below which a peer sends no more models."""
SMOOTHING = 0.05
"""Weight of the newest task in the running training loss."""
EQUAL = 0.5
"""Share of the other's weights that makes both models count alike."""
MAX_SHARE = 0.99
"""Largest share of another model. With a share of 1, the peer's own model and its samples would be lost."""
Fraction = Annotated[float, Must("above 0 and at most 1", lambda value: 0 < value <= 1)]
Share = Annotated[float, Must("above 0 and below 1", lambda value: 0 < value < 1)]


@dataclass
class PeerAveraging(Strategy):
    """Base class of strategies for peers that train on their own and average their models with other peers.

    A peer computes one minibatch after the other and steps with the job's optimizer. After a step, `is_due` decides
    whether to exchange models. During a pull, the peer waits for the reply; with `overlap`, it first computes one more
    minibatch. Averaging does not change the momentum.
    """

    mode: Annotated[Mode, _one_of("pull", "push", "push_pull")] = "pull"
    """`pull`: average another peer's weights into this peer's. `push`: send the weights with half of this
    peer's sum weight, and the receiver averages (GoSGD). `push_pull`: both peers average."""
    topology: Annotated[Topology, Must("a topology", lambda value: not topology(value))] = "random"
    """Which peer comes next: `random`, `ring`, `hypercube`, `exponential` or `matching`."""
    mixing: Annotated[Mixing, _one_of("constant", "clock", "loss")] = "constant"
    """Share of the other's weights in an average: `constant` (`share`), by the samples that both have trained on
    (`clock`), or by both training losses (`loss`). `push` uses sum weights instead."""
    share: Share = EQUAL
    """Share of the other's weights with `mixing="constant"`."""
    overlap: bool = False
    """Whether a peer computes the next minibatch while it awaits a model, which is then averaged with newer weights
    (AD-PSGD: Lian et al. 2018). After that minibatch, it waits."""
    reply_timeout_seconds: AboveZero | None = None
    """Seconds until a request that was not answered is given up. None: four times as long as the last answer took, and
    at least 2 s; 30 s before there was one."""
    steps: int = field(default=0, metadata=STATE)
    """Steps so far."""
    exchanges: int = field(default=0, metadata=STATE)
    """Number of exchanges that this peer started."""
    weight: float = field(default=1.0, metadata=STATE)
    """Sum weight of this peer, for `push`."""
    loss: float | None = field(default=None, metadata=STATE)
    """Running training loss."""
    awaits: NodeId = field(default="", metadata=STATE)
    """Peer with an awaited reply. Empty: none."""
    awaited_until: float = field(default=0.0, metadata=STATE)
    """Time when the awaited request times out."""
    awaited_from: int = field(default=-1, metadata=STATE)
    """Step that is followed by a wait for the reply."""
    is_deferred: bool = field(default=False, metadata=STATE)
    """Whether another exchange is due once the awaited model has arrived."""
    timeout: float = field(default=30.0, metadata=STATE)
    """Timeout of the next request in seconds, if `reply_timeout_seconds` is None."""
    rings_at: float = field(default=-1.0, metadata=STATE)
    """Time of the next alarm. A later alarm may also be set, from when the timeout was longer."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.mode == "push" and self.mixing != "constant":
            message = (
                f"mixing = {self.mixing!r} has no effect on mode = 'push', which averages by sum weights"
            )
            raise UsageError(message, "setting_of_another_kind", "mixing", given=self.mixing, kind="push")
        if self.mode == "push" and self.overlap:
            message = "overlap = True has no effect on mode = 'push', which awaits no model"
            raise UsageError(message, "setting_of_another_kind", "overlap", given=True, kind="push")
        if self.share != EQUAL and (self.mode == "push" or self.mixing != "constant"):
            kind = "push" if self.mode == "push" else self.mixing
            message = f"share = {self.share:g} has no effect on {kind!r}, which averages by other weights"
            raise UsageError(message, "setting_of_another_kind", "share", given=self.share, kind=kind)

    @property
    def measures(self) -> DriftOf | None:
        """Return the kind of change that each step must measure for `is_due`, or None for nothing."""
        return None

    @property
    def window(self) -> int:
        """Return the window length of each step's measurement, in merges. 0: steps measure no norm."""
        return 0

    @abstractmethod
    def is_due(self, view: View, changed: events.Changed | None) -> bool:
        """Return whether to exchange models after a step. `changed` has the measurements of the step."""

    def received(self, event: events.ModelReceived) -> None:
        """Process a received model, for strategies that adapt to it."""

    def exchanged(self) -> None:
        """Record that an exchange starts, for strategies that adapt to it."""

    def traits(self, batch_size: int) -> Traits:
        """Return the strategy's traits."""
        return Traits(mesh=True, task_samples=batch_size, task_setting="batch_size", updates=1)

    def validate(self, workers: int, metrics: Collection[str]) -> None:
        """Raise UsageError if the topology does not exist for this number of peers."""
        check_topology(self.topology, workers)

    def on(self, event: events.Event, view: View) -> Iterable[Command]:
        """Train, exchange models, and reply to requests."""
        match event:
            case events.Arrived(update):
                self._note_loss(update.loss)
                yield Step({update.id: 1.0}, self.window, drift=self.measures)
                self.steps += 1
                if self.measures is None and not self.window:
                    yield from self._after_step(view, None)
                return
            case events.Changed() if event.norm is not None or event.drift is not None:
                yield from self._after_step(view, event)
                return
            case events.ModelRequested(peer, tag):
                yield Send(peer, request_tag=tag, loss=self.loss)
            case events.ModelReceived():
                self.received(event)
                yield from self._average(event, view)
            case events.ModelRejected(peer, request_tag) if (
                request_tag == self.exchanges and peer == self.awaits
            ):
                self._give_up()
            case events.PeerJoined(peer) | events.PeerLost(peer):
                self._peers_changed(peer)
            case events.AlarmFired() if self.awaits:
                yield from self._wait_on(view)
        yield from self._train_on(view)

    def _after_step(self, view: View, changed: events.Changed | None) -> Iterator[Command]:
        is_due = self.is_due(view, changed)
        self.is_deferred = is_due and changed is None  # an average makes the measurements outdated
        if is_due and not self.awaits:
            yield from self._begin_exchange(view)
        yield from self._train_on(view)

    def _begin_exchange(self, view: View) -> Iterator[Command]:
        self.is_deferred = False
        peer = partner(self.topology, view, self.exchanges)
        if peer is not None:
            self.exchanged()
            yield from self._exchange(peer, view)

    def _train_on(self, view: View) -> Iterator[Command]:
        """Compute the next minibatch, unless the peer waits for a model."""
        if not self.awaits or (self.overlap and self.steps == self.awaited_from):
            yield from assign_idle(view, view.batch)

    def _exchange(self, peer: NodeId, view: View) -> Iterator[Command]:
        if self.mode == "push" and self.weight < MIN_WEIGHT:
            return  # its sum weight is too small: wait for models of others
        self.exchanges += 1
        if self.mode == "push":
            self.weight /= 2
            yield Send(peer, loss=self.loss, weight=self.weight)
            yield from self._mark()
            return
        self.awaits, self.awaited_until = peer, view.now + (self.reply_timeout_seconds or self.timeout)
        self.awaited_from = self.steps
        if self.mode == "pull":
            yield Request(peer, self.exchanges)
        else:
            yield Send(peer, reply_tag=self.exchanges, loss=self.loss)
        yield from self._set_alarm(view)

    def _set_alarm(self, view: View) -> Iterator[Command]:
        """Set an alarm unless an earlier alarm is set. The earlier alarm sets the next."""
        if not view.now < self.rings_at <= self.awaited_until:
            self.rings_at = self.awaited_until
            yield Wake(self.rings_at)

    def _wait_on(self, view: View) -> Iterator[Command]:
        """End a request that has timed out, or set the alarm for it."""
        if view.now >= self.awaited_until:
            self.timeout = min(2 * self.timeout, MAX_TIMEOUT_SECONDS)
            self._give_up()
        else:
            yield from self._set_alarm(view)

    def _average(self, event: events.ModelReceived, view: View) -> Iterator[Command]:
        """Average a model into this peer's weights, or drop a late reply."""
        model = event.model
        is_reply = model.request_tag is not None
        if is_reply and (model.sender, model.request_tag) != (self.awaits, self.exchanges):
            yield Drop(model.id)
            return
        if model.reply_tag is not None and model.sender in view.peers:
            yield Send(model.sender, request_tag=model.reply_tag, loss=self.loss)
        yield Average({model.id: min(self._share_of(model, view), MAX_SHARE)})
        if is_reply or self.mode != "push":
            yield from self._mark()
        if is_reply:
            self.timeout = max(MIN_TIMEOUT_SECONDS, 4 * event.seconds, self.timeout / 2)
            self._give_up()
            if self.is_deferred:
                yield from self._begin_exchange(view)

    def _mark(self) -> Iterator[Command]:
        if self.measures is not None:
            yield Mark()

    def _share_of(self, model: PeerModel, view: View) -> float:
        if self.mode == "push":
            self.weight += model.weight
            return model.weight / self.weight
        if self.mixing == "clock":
            own = view.samples
            return model.samples / (own + model.samples) if own + model.samples else EQUAL
        if self.mixing == "loss" and model.loss is not None and self.loss is not None:
            total = self.loss + model.loss
            is_sound = self.loss >= 0 <= model.loss and 0 < total < inf
            return self.loss / total if is_sound else EQUAL
        return self.share

    def _peers_changed(self, peer: NodeId) -> None:
        """Reset the sum weight, because the sum over all peers has changed, and do not wait for this peer."""
        self.weight = 1.0
        if peer == self.awaits:
            self._give_up()

    def _give_up(self) -> None:
        """Stop waiting for a reply."""
        self.awaits = ""

    def _note_loss(self, loss: float | None) -> None:
        if loss is not None:
            self.loss = loss if self.loss is None else self.loss + SMOOTHING * (loss - self.loss)
