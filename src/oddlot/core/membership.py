"""Membership of a mesh: which peers live. A state machine without clock, sockets or threads.

The protocol is SWIM (Das, Gupta, Motivala, DSN 2002) with its suspicion mechanism: each peer pings one other peer per
period, asks others to ping one that does not answer, suspects it, and declares it lost when it does not refute that.
News of peers travels on these messages. Any message of a peer, also that of an exchange, proves that it lives.

A step that holds the interpreter's lock keeps its peer from answering. Each peer therefore reports its longest step,
and a suspected peer has at least twice that time to answer.

Unlike in SWIM, a lost peer is a member again when it sends anything, and is pinged now and then. One that was only cut
off hears that it is lost, and refutes it with a higher incarnation: a mesh heals after a partition. A restarted process
has another name.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, inf, log2
from random import Random
from typing import Literal, NamedTuple

from oddlot.core.events import PeerJoined, PeerLost
from oddlot.core.task_timeouts import hung_after
from oddlot.core.tasks import NodeId, machine_of
from oddlot.core.worker_stats import TIMEOUT_FACTOR

State = Literal["alive", "suspected", "lost"]
MAX_NEWS = 10
"""News on one message. A peer that was unknown gets all of it."""
HELPERS = 3
"""Peers that are asked to ping one that does not answer."""
STEPS_SUSPECTED = 2.0
"""Least time for a refutation, as a multiple of the longest step of the suspected peer."""


class News(NamedTuple):
    """What is known of a peer. Of two news, that of the higher incarnation is newer; then lost beats suspected, and
    suspected beats alive."""

    peer: NodeId
    address: str
    incarnation: int
    """Number with which the peer itself has refuted a suspicion last."""
    state: State


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for an `Ack` with the same number."""

    number: int
    news: tuple[News, ...] = ()
    step_seconds: float = 0.0
    """Longest recent step of the sender, in seconds. 0: it has finished none."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Answers a ping."""

    number: int
    news: tuple[News, ...] = ()
    step_seconds: float = 0.0
    """Longest recent step of the sender, in seconds. 0: it has finished none."""


@dataclass(frozen=True, slots=True)
class PingRequest:
    """Asks a peer to ping a third one, and to pass its `Ack` on."""

    number: int
    peer: NodeId
    news: tuple[News, ...] = ()


MembershipMessage = Ping | Ack | PingRequest
PeerEvent = PeerJoined | PeerLost


@dataclass(frozen=True, kw_only=True)
class MembershipSettings:
    """Times of the protocol, in seconds."""

    ping_seconds: float = 0.5
    """Time between two pings, and until an answer is late."""
    suspicion_seconds: float = 2.0
    """Time in which a suspected peer can refute that it is lost, in a mesh of at most four peers."""
    retry_seconds: float = 2.0
    """Time between two pings of lost peers."""


@dataclass
class Member:
    """Another peer."""

    address: str
    incarnation: int = 0
    state: State = "alive"
    heard_at: float = 0.0
    """Time of its last message."""
    has_left: bool = False
    """Whether it has said itself that it leaves."""
    has_ended: bool = False
    """Whether its process has ended for sure."""
    step_seconds: float = 0.0
    """Its longest recent step, in seconds. 0: unknown."""


@dataclass
class Probe:
    """A ping that was not answered yet."""

    peer: NodeId
    number: int
    sent_at: float
    is_indirect: bool = False
    """Whether other peers were asked to ping it."""


@dataclass
class Membership:
    """The other peers of a mesh, as the peer `me` knows them.

    Pass each message to `receive`, and call `tick` at `next_at`. Both return the events for the strategy; `outbox` then
    has the messages to send.
    """

    me: NodeId
    address: str
    rng: Random
    settings: MembershipSettings = field(default_factory=MembershipSettings)
    incarnation: int = 0
    has_left: bool = False
    """Whether it leaves: it does not refute that any more."""
    step_seconds: float = 0.0
    """Longest recent step of this peer, in seconds. 0: it has finished none."""
    members: dict[NodeId, Member] = field(default_factory=dict)
    outbox: list[tuple[NodeId, MembershipMessage]] = field(default_factory=list)
    """Messages to send, with their receivers."""
    suspected: dict[NodeId, float] = field(default_factory=dict)
    """Suspected peers, with the times since when."""
    probe: Probe | None = None
    ring: list[NodeId] = field(default_factory=list)
    """Peers to ping next, the last one first."""
    numbers: int = 0
    relayed: dict[int, tuple[NodeId, int]] = field(default_factory=dict)
    """Pings on behalf of another peer, with that peer and its number."""
    to_tell: dict[NodeId, int] = field(default_factory=dict)
    """How often news of a peer will still be sent."""
    ping_at: float = 0.0
    retry_at: float = 0.0

    def begin(self, now: float) -> None:
        """Start the clock."""
        self.ping_at, self.retry_at = now + self.settings.ping_seconds, now + self.settings.retry_seconds
        self.to_tell[self.me] = self._repeats()

    def meet(self, members: Mapping[NodeId, str], now: float) -> list[PeerEvent]:
        """Know these peers at their addresses. They are alive until they do not answer."""
        return [
            event
            for peer, address in members.items()
            for event in self._learn(News(peer, address, 0, "alive"), now, self.me)
        ]

    @property
    def living(self) -> list[NodeId]:
        """Return the peers that are not lost."""
        return [peer for peer, member in self.members.items() if member.state != "lost"]

    @property
    def next_at(self) -> float:
        """Return the time at which `tick` is due."""
        if not self.members:
            return inf
        lost_at = min(map(self._lost_at, self.suspected), default=inf)
        return min(self.ping_at, self.retry_at, self._late_at, lost_at)

    def greet(self, peer: NodeId) -> None:
        """Ping a peer now, for example the one through which this peer joins."""
        self._send(peer, Ping(self._number()))

    def leave(self) -> None:
        """Tell all peers that this one leaves."""
        self.to_tell, self.has_left = {}, True
        news = (News(self.me, self.address, self.incarnation, "lost"),)
        for peer in self.living:
            self.outbox.append((peer, Ping(self._number(), news)))

    def unreachable(self, peer: NodeId, now: float) -> None:
        """Note that the connection to a peer broke: it is suspected."""
        if peer in self.members:
            self._suspect(peer, now)

    def gone(self, peer: NodeId) -> list[PeerEvent]:
        """Note that a peer's process has ended for sure: nothing listens at its address any more."""
        member = self.members.get(peer)
        if member is None:
            return []
        member.has_ended = True
        return list(self._declare_lost(peer)) if member.state != "lost" else []

    def may_return(self, now: float) -> list[NodeId]:
        """Return the lost peers that may only be busy: they have neither ended nor left, and are not hung yet.

        A peer counts as hung by the rule for workers of a hub. One whose machine has another living peer was replaced.
        """
        replaced = {machine_of(peer) for peer in self.living}
        return [
            peer
            for peer, one in self.members.items()
            if one.state == "lost" and not (one.has_left or one.has_ended)
            if now - one.heard_at < hung_after(TIMEOUT_FACTOR * one.step_seconds)
            if machine_of(peer) not in replaced
        ]

    def receive(self, sender: NodeId, message: MembershipMessage, now: float) -> list[PeerEvent]:
        """Process a message of a peer. Answers are in the outbox."""
        events = [*self.heard(sender, now), *self._all_learned(message.news, now, sender)]
        if not isinstance(message, PingRequest) and sender in self.members:
            self.members[sender].step_seconds = message.step_seconds
        match message:
            case Ping(number):
                self._send(sender, Ack(number), tell_all=bool(events))
            case PingRequest(number, peer) if peer in self.members:
                own = self._number()
                self.relayed[own] = sender, number
                self._send(peer, Ping(own))
            case Ack(number):
                if self.probe is not None and number == self.probe.number:
                    events += self.heard(self.probe.peer, now)
                elif number in self.relayed:
                    requester, asked = self.relayed.pop(number)
                    self._send(requester, Ack(asked))
        return events

    def heard(self, peer: NodeId, now: float) -> list[PeerEvent]:
        """Note that a peer lives: it has sent any message. One that has left stays lost."""
        member = self.members.get(peer)
        if member is None:
            return []
        member.heard_at, member.has_ended = now, False
        if self.probe is not None and self.probe.peer == peer:
            self.probe = None
        if member.state == "alive" or member.has_left:
            return []
        before, member.state = member.state, "alive"
        self.suspected.pop(peer, None)
        self.to_tell.pop(peer, None)
        return [PeerJoined(peer)] if before == "lost" else []

    def tick(self, now: float) -> list[PeerEvent]:
        """Do what is due."""
        if self.probe is not None and now >= self._late_at:
            self._press(self.probe, now)
        if now >= self.ping_at:
            self.ping_at = now + self.settings.ping_seconds
            self._ping_next(now)
        if now >= self.retry_at:
            self.retry_at = now + self.settings.retry_seconds
            lost = [peer for peer, member in self.members.items() if member.state == "lost"]
            if lost:
                self._send(self.rng.choice(lost), Ping(self._number()))
        overdue = [peer for peer in self.suspected if now >= self._lost_at(peer)]
        return [event for peer in overdue for event in self._declare_lost(peer)]

    # --- probing -------------------------------------------------------------------------------

    @property
    def _late_at(self) -> float:
        if self.probe is None:
            return inf
        return self.probe.sent_at + self.settings.ping_seconds * (2 if self.probe.is_indirect else 1)

    def _lost_at(self, peer: NodeId) -> float:
        """Return the time at which a suspected peer is lost.

        The time for a refutation grows with the mesh, as the time that news takes, and with the peer's longest step.
        """
        least = self.settings.suspicion_seconds * max(1.0, log2(len(self.members) + 1) / 2)
        return self.suspected[peer] + max(least, STEPS_SUSPECTED * self.members[peer].step_seconds)

    def _ping_next(self, now: float) -> None:
        """Ping the next peer in a shuffled order, unless it was heard within a period and there is no news."""
        if self.probe is not None:
            return
        if not self.ring:
            self.ring = self.living
            self.rng.shuffle(self.ring)
        while self.ring:
            peer = self.ring.pop()
            member = self.members[peer]
            if member.state != "lost":
                break
        else:
            return
        if self.to_tell or now - member.heard_at >= self.settings.ping_seconds:
            self.probe = Probe(peer, self._number(), now)
            self._send(peer, Ping(self.probe.number))

    def _press(self, probe: Probe, now: float) -> None:
        """Ask other peers to ping one whose answer is late; suspect it when that has not helped."""
        others = [peer for peer in self.living if peer != probe.peer]
        if probe.is_indirect or not others:
            self._suspect(probe.peer, now)
            self.probe = None
            return
        probe.is_indirect = True
        for helper in self.rng.sample(others, min(HELPERS, len(others))):
            self._send(helper, PingRequest(probe.number, probe.peer))

    def _suspect(self, peer: NodeId, now: float) -> None:
        member = self.members[peer]
        if member.state == "alive":
            member.state = "suspected"
            self._warn_suspected(peer, now)
            self.to_tell[peer] = self._repeats()

    def _warn_suspected(self, peer: NodeId, now: float) -> None:
        """Tell a peer that it is suspected, so that it refutes that soon."""
        self.suspected[peer] = now
        self._send(peer, Ping(self._number()))

    def _declare_lost(self, peer: NodeId) -> Iterator[PeerEvent]:
        member = self.members[peer]
        member.state = "lost"
        self.suspected.pop(peer, None)
        self.to_tell[peer] = self._repeats()
        yield PeerLost(peer)

    # --- news ----------------------------------------------------------------------------------

    def _all_learned(self, news: Iterable[News], now: float, teller: NodeId) -> Iterator[PeerEvent]:
        for one in news:
            yield from self._learn(one, now, teller)

    def _learn(self, news: News, now: float, teller: NodeId) -> Iterator[PeerEvent]:
        """Take over what is newer than what is known."""
        peer, address, incarnation, state = news
        if peer == self.me:
            if state != "alive" and incarnation >= self.incarnation and not self.has_left:
                self.incarnation = incarnation + 1
                self.to_tell[peer] = self._repeats()
            return
        member = self.members.get(peer)
        if member is None:  # it is known as lost until this news is taken over
            member = self.members[peer] = Member(address, -1, "lost", now)
        rank = {"alive": 0, "suspected": 1, "lost": 2}
        if (incarnation, rank[state]) <= (member.incarnation, rank[member.state]):
            return
        patience = max(self.settings.suspicion_seconds, STEPS_SUSPECTED * member.step_seconds)
        was_heard = member.state != "lost" and now - member.heard_at < patience
        if state == "lost" and was_heard and teller != peer:
            return  # others cannot reach it, which it will refute
        before, member.state = member.state, state
        member.address, member.incarnation = address, incarnation
        member.has_left = state == "lost" and teller == peer
        self.suspected.pop(peer, None)
        self.to_tell[peer] = self._repeats()
        if state == "suspected":
            self._warn_suspected(peer, now)
        if state == "lost" and before != "lost":
            yield PeerLost(peer)
        elif state != "lost" and before == "lost":
            yield PeerJoined(peer)

    def _send(self, receiver: NodeId, message: MembershipMessage, tell_all: bool = False) -> None:
        """Put a message with news into the outbox."""
        news = self._news(receiver, tell_all)
        match message:
            case Ping(number):
                message = Ping(number, news, self.step_seconds)
            case Ack(number):
                message = Ack(number, news, self.step_seconds)
            case PingRequest(number, peer):
                message = PingRequest(number, peer, news)
        self.outbox.append((receiver, message))

    def _news(self, receiver: NodeId, tell_all: bool) -> tuple[News, ...]:
        """Return the news to send: of this peer, of a receiver that is suspected or lost, then what was sent least."""
        first = [self.me]
        member = self.members.get(receiver)
        if member is not None and member.state != "alive":
            first.append(receiver)
        told = sorted(self.to_tell, key=lambda peer: -self.to_tell[peer])
        names = dict.fromkeys([*first, *told, *(self.members if tell_all else ())])
        chosen = list(names) if tell_all else list(names)[:MAX_NEWS]
        for peer in chosen:
            if peer in self.to_tell:
                self.to_tell[peer] -= 1
                if self.to_tell[peer] <= 0:
                    del self.to_tell[peer]
        return tuple(self._known(peer) for peer in chosen)

    def _known(self, peer: NodeId) -> News:
        if peer == self.me:
            return News(peer, self.address, self.incarnation, "alive")
        member = self.members[peer]
        return News(peer, member.address, member.incarnation, member.state)

    def _repeats(self) -> int:
        """Return how often news is sent: with high probability, all peers then get it."""
        return 3 * ceil(log2(len(self.members) + 2))

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers
