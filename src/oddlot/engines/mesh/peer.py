"""A peer on any engine: membership, averages of all peers, and replies to other peers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from oddlot.core.conductor import Conductor
from oddlot.core.events import (
    GoalReached,
    ModelRejected,
    ModelRequested,
    PeerJoined,
    PeerLost,
)
from oddlot.core.membership import Membership
from oddlot.core.membership_messages import Ack, Ping, PingRequest
from oddlot.core.peers import IncludedModel
from oddlot.core.records import HostState
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Message, Observer
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
)
from oddlot.engines.mesh.peer_host import PeerHost, PeerLog, PeerPort
from oddlot.model.arrival import norm_of
from oddlot.model.weight_store import WeightStore


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
    """Returns the state of the host, after the log was flushed. None if the run writes no checkpoints."""

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
