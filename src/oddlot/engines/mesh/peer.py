"""A peer on any engine: its host, the interfaces of its log and port, and its replies to other peers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from typing import Any, Protocol

from oddlot.core.commands import Action, Average, Complete, Dispatch, Request, Start
from oddlot.core.conductor import Conductor
from oddlot.core.events import (
    GoalReached,
    LinkTraffic,
    ModelReceived,
    ModelRejected,
    ModelRequested,
    PeerJoined,
    PeerLost,
    Stimulus,
)
from oddlot.core.membership import Membership
from oddlot.core.membership_messages import Ack, Ping, PingRequest
from oddlot.core.peers import IncludedModel, PeerModel
from oddlot.core.records import HostState, Record
from oddlot.core.support.errors import Refusal
from oddlot.core.tasks import Facts, NodeId, Task
from oddlot.engines.host import Host, Message, Observer, Port, WeightChange
from oddlot.engines.mesh.averaging import Averaging
from oddlot.engines.mesh.messages import (
    Done,
    Finished,
    FromPeer,
    ModelForAverage,
    ModelMessage,
    ModelRequest,
    PeerMessage,
    SnapshotRequest,
    State,
    StateRequest,
    Stop,
    Tensors,
)
from oddlot.model.update_gates import norm_of
from oddlot.model.weight_store import Payload, WeightStore

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

    def traffic(self) -> Iterable[LinkTraffic]:
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

    def handle(self, event: Stimulus, now: float) -> None:
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
                raise Refusal(text, "unreadable", update=model.id)
            payload = Payload("weights", came.tensors.weights, came.tensors.release, model.layers)
            self._check(model, came.sender)
            facts = Facts(model.id, came.sender, self.store.version, max(1, model.samples), "weights")
            self.store.receive(facts, payload)
        except Refusal as refusal:
            if payload is not None:
                payload.release()
            self.handle(ModelRejected(came.sender, model.answers, str(refusal), refusal.code), now)
            return
        tag, at = self.requested
        self.handle(ModelReceived(model, came.bytes, now - at if tag == model.answers else 0.0), now)

    def _check(self, model: PeerModel, sender: NodeId) -> None:
        if model.sender != sender:
            raise Refusal(
                f"model {model.id} of {model.sender} came from {sender}", "other_sender", sender=sender
            )
        is_sound = 0 < model.weight <= MAX_WEIGHT and model.samples >= 0
        if not is_sound or not isfinite(model.loss or 0.0):
            message = (
                f"model {model.id} has weight {model.weight}, samples {model.samples} and loss {model.loss}"
            )
            raise Refusal(message, "numbers_not_finite", update=model.id)
        if model.id in self.conductor.peers.models:
            raise Refusal(f"model {model.id} came twice", "model_twice", update=model.id)

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


@dataclass
class Peer:
    """A peer of a mesh.

    A peer that has finished gets no more tasks, but still replies to the others. The first running peer is the lead:
    it averages the models of all peers.
    """

    host: PeerHost
    membership: Membership
    finished: str = ""
    """Why it has finished. Empty: it trains."""
    stop: str = ""
    """Why all peers were asked to finish. Empty: there was no request."""
    is_done: bool = False
    """Whether the model is saved, so that the peer may end."""
    others_finished: set[NodeId] = field(default_factory=set)
    averaging: Averaging | None = None
    """The average that it is collecting."""
    averages: int = 0
    host_state: Callable[[], HostState] | None = None
    """Returns the state of the host, after the log was flushed. None: the run writes no checkpoints."""

    @classmethod
    def of(
        cls,
        conductor: Conductor,
        store: WeightStore,
        port: PeerPort,
        membership: Membership,
        observers: Sequence[Observer],
        log: PeerLog | None = None,
    ) -> "Peer":
        """Return a peer with a host of these parts. Observers receive each record before the log."""
        host = PeerHost(conductor, store, port, list(observers))
        if log is not None:
            host.observers.append(log)
            host.flush_log, host.records = log.check, log.records
        host.observers.append(host.count_record)
        return cls(host, membership)

    @property
    def name(self) -> NodeId:
        """Return the name of the peer."""
        return self.membership.me

    @property
    def ended(self) -> str:
        """Return why the run ends; empty while this peer trains."""
        return self.stop or self.finished

    @property
    def is_lead(self) -> bool:
        """Whether it is the lead: the first running peer."""
        return self.host.conductor.peers.lead == self.name

    def all_finished(self, now: float) -> bool:
        """Return whether all running peers have finished, and no lost peer may return."""
        living = self.host.conductor.peers.living
        is_finished = bool(self.finished) and self.others_finished.issuperset(living)
        return is_finished and not self.membership.may_return(now)

    @property
    def alarm(self) -> float:
        """Return the due time of `ring`."""
        return min(self.host.alarm, self.membership.next_at)

    def ring(self, now: float) -> None:
        """Handle due alarms and timeouts."""
        if now >= self.membership.next_at:
            self._tell(self.membership.tick(now), now)
        self.host.ring(now)

    def receive(self, message: FromPeer | Message, now: float) -> None:
        """Handle a message of another peer, or of this peer's computation."""
        if isinstance(message, FromPeer):
            self._hear(message, now)
        else:
            self.host.receive(message, now)
            conductor = self.host.conductor
            self.membership.step_seconds = conductor.worker_stats.longest(self.name, conductor.batch)

    def finish(self, reason: str, now: float) -> None:
        """Take no further tasks, and notify the lead."""
        if not self.finished:
            self.finished = reason
            self.host.handle(GoalReached(reason), now)
        self.say_finished()

    def say_finished(self) -> None:
        """Notify the lead that this peer has finished. The lead repeats its request to stop, if there was one.

        Call this repeatedly, because messages and the lead may be lost.
        """
        lead = self.host.conductor.peers.lead
        if lead != self.name:
            self.host.port.send(lead, Finished(self.finished))
        elif self.stop:
            for peer in self.host.conductor.peers.living.keys() - self.others_finished:
                self.host.port.send(peer, Stop(self.stop))

    def tell_all(self, message: PeerMessage) -> None:
        """Send a message to all running peers."""
        for peer in list(self.host.conductor.peers.living):
            self.host.port.send(peer, message)

    def end_all(self) -> None:
        """Notify all peers that the model is saved."""
        self.tell_all(Done())
        self.is_done = True

    def stop_all(self, reason: str) -> None:
        """Ask all peers to finish."""
        self.stop = self.stop or reason
        self.tell_all(Stop(reason))

    def meet(self, known: Mapping[NodeId, str], now: float) -> None:
        """Add peers, with their addresses, to the membership."""
        self._tell(self.membership.meet(known, now), now)

    def join(self, known: Mapping[NodeId, str], now: float) -> None:
        """Add peers, with their addresses, to the membership, and greet each of them."""
        self.meet(known, now)
        for peer in known:
            self.membership.greet(peer)
        self.flush()

    def gone(self, peer: NodeId, now: float) -> None:
        """Record that the process of a peer has ended."""
        self._tell(self.membership.gone(peer), now)

    def lose_replaced(self, is_replaced: Callable[[NodeId], bool], now: float) -> None:
        """Record the loss of replaced peers with a model in the inbox. Replacements process its samples again."""
        models = self.host.conductor.peers.models.values()
        for sender in dict.fromkeys(model.sender for model in models):
            if is_replaced(sender):
                self.gone(sender, now)

    def begin_average(self, now: float, *, with_state: bool = False) -> None:
        """Ask all running peers for their weights and, for a checkpoint, for their host states."""
        self.averages += 1
        own = self.host.snapshot()
        others = list(self.host.conductor.peers.living)
        self.averaging = Averaging(self.averages, own.weights, self.host.source, others, now)
        own.release()
        if with_state and self.host_state is not None:
            self.averaging.host_states[self.name] = self.host_state()
        self.ask_for_snapshots(now)

    def ask_for_snapshots(self, now: float) -> None:
        """Request the missing weights of an average. Call this again if a message may have been lost."""
        assert self.averaging is not None
        self.averaging.asked_at = now
        with_state = bool(self.averaging.host_states)
        for peer in self.averaging.missing:
            self.host.port.send(peer, SnapshotRequest(self.averaging.number, with_state))

    # --- messages ------------------------------------------------------------------------------

    def _hear(self, came: FromPeer, now: float) -> None:
        if (
            isinstance(came.message, ModelRequest | ModelMessage)
            and came.sender not in self.membership.members
        ):
            self.meet({came.sender: self.host.port.address_of(came.sender)}, now)
        self._tell(self.membership.heard(came.sender, now), now)
        match came.message:
            case Ping() | Ack() | PingRequest():
                self._tell(self.membership.receive(came.sender, came.message, now), now)
            case ModelRequest(tag):
                self.host.handle(ModelRequested(came.sender, tag), now)
            case ModelMessage():
                self.host.take(came.message, came, now)
            case Finished():
                self.others_finished.add(came.sender)
            case Stop(reason):
                self.stop = reason
            case Done():
                self.is_done = True
            case _:
                self._serve(came, now)
        self.flush()

    def _serve(self, came: FromPeer, now: float) -> None:
        """Send or receive the weights of an average, or send the state to a peer that joins."""
        sender, host = came.sender, self.host
        match came.message:
            case SnapshotRequest(number, with_state):
                host_state = self.host_state() if with_state and self.host_state is not None else None
                host.port.send(
                    sender, ModelForAverage(number, host.source.records, host_state), host.snapshot()
                )
            case ModelForAverage() as snapshot:
                if self.averaging is not None and snapshot.number == self.averaging.number:
                    self._add(self.averaging, came, snapshot, now)
            case StateRequest(address):
                host.port.know(sender, address)
                optimizer = {name: one.clone() for name, one in host.store.optimizer_tensors().items()}
                state = replace(host.snapshot(), optimizer=optimizer)
                host.port.send(sender, State(host.source.records), state)
        came.release()

    def _add(self, averaging: Averaging, came: FromPeer, snapshot: ModelForAverage, now: float) -> None:
        """Add the weights of a peer to an average, or continue without them if they are invalid."""
        if came.tensors is not None and isfinite(norm_of(came.tensors.weights)):
            source = IncludedModel(came.sender, snapshot.records)
            averaging.add(source, came.tensors.weights, came.bytes, snapshot.host_state)
            return
        reason = (
            came.problem or f"the weights of {came.sender} are not finite: its model is not in the average"
        )
        self.host.handle(ModelRejected(came.sender, None, reason, "numbers_not_finite"), now)
        averaging.lose(came.sender)

    def _tell(self, events: Iterable[PeerJoined | PeerLost], now: float) -> None:
        """Notify the strategy of peers that joined or were lost."""
        for event in events:
            if isinstance(event, PeerLost):
                self.others_finished.discard(event.peer)
                if self.averaging is not None:
                    self.averaging.lose(event.peer)
            self.host.handle(event, now)
        self.flush()

    def flush(self) -> None:
        """Send the queued messages of the membership."""
        messages, self.membership.outbox = self.membership.outbox, []
        for peer, message in messages:
            self.host.port.send(peer, message)
