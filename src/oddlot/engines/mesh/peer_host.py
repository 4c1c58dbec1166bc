"""The host of a peer on any engine, and the interfaces of its log and port."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any, Protocol

from oddlot.core import events
from oddlot.core.commands import Action, Average, Complete, Dispatch, Request, Start
from oddlot.core.peers import IncludedModel, PeerModel
from oddlot.core.records import Record
from oddlot.core.support.errors import Rejection
from oddlot.core.tasks import Facts, NodeId, Task
from oddlot.engines.host import Host, Port, WeightChange
from oddlot.engines.mesh.messages import (
    FromPeer,
    ModelMessage,
    ModelRequest,
    PeerMessage,
    Tensors,
)
from oddlot.model.payload import Payload
from oddlot.model.weight_store import WeightStore

MAX_WEIGHT = 2.0**30
"""Maximum sum weight of an accepted model."""


class PeerLog(Protocol):
    """The log of a peer."""

    records: int
    """Number of its records."""

    def __call__(self, record: Record) -> None:
        """Write a record."""

    def check(self) -> None:
        """Flush the log. Raise JobError if another process has changed it."""


class PeerPort(Port, Protocol):
    """A peer's interface to its computation and to other peers. No method blocks."""

    def send(self, peer: NodeId, message: PeerMessage, tensors: Tensors | None = None) -> None:
        """Send a message. It may be lost."""

    def traffic(self) -> Iterable[events.LinkTraffic]:
        """Return the bytes sent to each peer so far."""

    def know(self, peer: NodeId, address: str) -> None:
        """Record the address of a peer that is not a member yet."""

    def address_of(self, peer: NodeId) -> str:
        """Return the address of a peer that has sent a message."""


@dataclass
class PeerHost(Host):
    """The host of a peer. It also executes the actions of exchanges."""

    port: PeerPort
    store: WeightStore
    requested: tuple[int, float] = (-1, 0.0)
    """Tag and time of the last request that expects a model."""
    records: int = 0
    """Number of records in the log."""
    flush_log: Callable[[], None] = lambda: None
    """Writes the log into its file, and checks the file. It is called before weights are sent, so that the log
    covers them."""
    models_to_send: list[tuple[NodeId, ModelMessage, Tensors]] = field(default_factory=list)
    """Models of the current record. They are sent once the record is logged."""
    to_start: list[tuple[Task, Any]] = field(default_factory=list)
    """Tasks of the current record with their weights. They start once it is logged, because they may end the
    process."""
    has_averaged: bool = False
    """Whether the log's file may lack an average."""

    def handle(self, event: events.Stimulus, now: float) -> None:
        """Handle an event, then start the tasks and send the models of its record."""
        super().handle(event, now)
        if self.has_averaged or self.models_to_send or self.to_start:
            self.has_averaged = False
            self.flush_log()
            tasks, self.to_start = self.to_start, []
            for task, weights in tasks:
                self.port.start(task, weights)
            models, self.models_to_send = self.models_to_send, []
            for peer, message, tensors in models:
                self.port.send(peer, message, tensors)

    def count_record(self, _: Record) -> None:
        """Count a record of the log."""
        self.records += 1

    @property
    def source(self) -> IncludedModel:
        """Return the current model as a source of other models. Flushes its records to the log's file."""
        self.flush_log()
        return IncludedModel(self.conductor.peers.me, self.records)

    def snapshot(self, layers: tuple[int, ...] | None = None) -> Tensors:
        """Return the current weights. They do not change until they are released."""
        version = self.store.version
        return Tensors(self.store.acquire(version), partial(self.store.release, version), layers)

    def take(self, message: ModelMessage, came: FromPeer, now: float) -> None:
        """Put the weights of a peer into the inbox, or reject them."""
        model, payload = message.model, None
        try:
            if came.problem or came.tensors is None:
                text = came.problem or f"model {model.id} has no tensors"
                raise Rejection(text, "unreadable", update=model.id)
            payload = Payload("weights", came.tensors.weights, came.tensors.release, model.layers)
            self._check(model, came.sender)
            facts = Facts(model.id, came.sender, self.store.version, max(1, model.samples), "weights")
            self.store.receive(facts, payload)
        except Rejection as rejection:
            if payload is not None:
                payload.release()
            self.handle(
                events.ModelRejected(came.sender, model.request_tag, str(rejection), rejection.code), now
            )
            return
        tag, at = self.requested
        self.handle(
            events.ModelReceived(model, came.bytes, now - at if tag == model.request_tag else 0.0), now
        )

    def _check(self, model: PeerModel, sender: NodeId) -> None:
        if model.sender != sender:
            raise Rejection(
                f"model {model.id} of {model.sender} came from {sender}", "other_sender", sender=sender
            )
        is_sound = 0 < model.weight <= MAX_WEIGHT and model.samples >= 0
        if not is_sound or not isfinite(model.loss or 0.0):
            message = (
                f"model {model.id} has weight {model.weight}, samples {model.samples} and loss {model.loss}"
            )
            raise Rejection(message, "numbers_not_finite", update=model.id)
        if model.id in self.conductor.peers.models:
            raise Rejection(f"model {model.id} came twice", "model_twice", update=model.id)

    def _perform(self, action: Action) -> WeightChange | None:
        match action:
            case Start(task):
                self.holds[task.id] = task.version
                self.to_start.append((task, self.store.acquire(task.version)))
                return None
            case Request(peer, tag):
                self.requested = tag, self.conductor.now
                self.port.send(peer, ModelRequest(tag))
                return None
            case Dispatch(peer, model):
                if model.reply_tag is not None:
                    self.requested = model.reply_tag, self.conductor.now
                self.models_to_send.append((peer, ModelMessage(model), self.snapshot(model.layers)))
                return None
            case Average(shares, keep):
                self.has_averaged = True
                return self.store.blend(shares, keep=keep)
            case Complete(model_id, older):
                self.store.complete(model_id, older)
                return None
            case _:
                return super()._perform(action)
