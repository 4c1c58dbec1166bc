"""Membership of a mesh: the list of running peers. A state machine without clock, sockets or threads.

The protocol is SWIM (Das, Gupta, Motivala, DSN 2002) with its suspicion mechanism: each peer pings one other peer per
period. If there is no reply, it asks others to ping that peer, then suspects it, and declares it lost if it does not
refute the suspicion. These messages also carry news of peers. Any message from a peer, including model exchanges,
proves that it is running.

A peer cannot reply during a step that holds the interpreter's lock. Each peer therefore reports its longest step, and a
suspected peer has at least twice that time to reply.

Unlike in SWIM, lost peers are pinged occasionally, and become members again when they send a message. A peer that was
only cut off learns that it is considered lost, and refutes this with a higher incarnation. A mesh thus heals after a
partition. A restarted process has a new name.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, inf, log2
from random import Random

from oddlot.core.events import PeerJoined, PeerLost
from oddlot.core.membership_messages import Ack, MembershipMessage, PeerStatus, Ping, PingRequest, State
from oddlot.core.task_timeouts import hung_after
from oddlot.core.tasks import NodeId, machine_of
from oddlot.core.worker_stats import TIMEOUT_FACTOR

MAX_NEWS = 10
"""Largest number of news items per message. New peers are sent all news."""
HELPERS = 3
"""Number of peers that are asked to ping a peer that does not reply."""
STEPS_SUSPECTED = 2.0
"""Minimum time to refute a suspicion, as a multiple of the suspected peer's longest step."""
PeerEvent = PeerJoined | PeerLost


@dataclass(frozen=True, kw_only=True)
class MembershipSettings:
    """Times of the protocol, in seconds."""

    ping_seconds: float = 0.5
    """Time between two pings, and time until a reply counts as late."""
    suspicion_seconds: float = 2.0
    """Time for a suspected peer to refute the suspicion, in a mesh of at most four peers."""
    retry_seconds: float = 2.0
    """Time between two pings of lost peers."""


@dataclass
class KnownPeer:
    """The state of another peer."""

    address: str
    incarnation: int = 0
    state: State = "alive"
    heard_at: float = 0.0
    """Time of its last message."""
    has_left: bool = False
    """Whether it has announced that it leaves."""
    has_ended: bool = False
    """Whether its process is known to have ended."""
    step_seconds: float = 0.0
    """Its longest recent step, in seconds. 0: unknown."""


@dataclass
class Probe:
    """A ping without a reply so far."""

    peer: NodeId
    number: int
    sent_at: float
    is_indirect: bool = False
    """Whether other peers were asked to ping it."""


@dataclass
class Membership:
    """The other peers of a mesh, as known to the peer `me`.

    Pass each message to `receive`, and call `tick` at `next_at`. Both return the events for the strategy; `outbox` then
    has the messages to send.
    """

    me: NodeId
    address: str
    rng: Random
    settings: MembershipSettings = field(default_factory=MembershipSettings)
    incarnation: int = 0
    has_left: bool = False
    """Whether this peer leaves. It then no longer refutes that it is lost."""
    step_seconds: float = 0.0
    """Longest recent step of this peer, in seconds. 0: it has finished none."""
    members: dict[NodeId, KnownPeer] = field(default_factory=dict)
    outbox: list[tuple[NodeId, MembershipMessage]] = field(default_factory=list)
    """Messages to send, with their receivers."""
    suspected: dict[NodeId, float] = field(default_factory=dict)
    """Start time of the suspicion, by suspected peer."""
    probe: Probe | None = None
    ring: list[NodeId] = field(default_factory=list)
    """Peers to ping next, in reverse order."""
    numbers: int = 0
    relayed: dict[int, tuple[NodeId, int]] = field(default_factory=dict)
    """By number of a ping sent for another peer: that peer and the number of its request."""
    to_tell: dict[NodeId, int] = field(default_factory=dict)
    """Remaining number of times to send news of each peer."""
    ping_at: float = 0.0
    retry_at: float = 0.0

    def begin(self, now: float) -> None:
        """Start the clock."""
        self.ping_at, self.retry_at = now + self.settings.ping_seconds, now + self.settings.retry_seconds
        self.to_tell[self.me] = self._repeats()

    def meet(self, members: Mapping[NodeId, str], now: float) -> list[PeerEvent]:
        """Add peers with their addresses. They count as running until they fail to reply."""
        return [
            event
            for peer, address in members.items()
            for event in self._learn(PeerStatus(peer, address, 0, "alive"), now, self.me)
        ]

    @property
    def living(self) -> list[NodeId]:
        """Return the peers that are not lost."""
        return [peer for peer, member in self.members.items() if member.state != "lost"]

    @property
    def next_at(self) -> float:
        """Return the due time of `tick`."""
        if not self.members:
            return inf
        lost_at = min(map(self._lost_at, self.suspected), default=inf)
        return min(self.ping_at, self.retry_at, self._late_at, lost_at)

    def greet(self, peer: NodeId) -> None:
        """Ping a peer now, for example the peer that this peer joins through."""
        self._send(peer, Ping(self._number()))

    def leave(self) -> None:
        """Announce to all peers that this one leaves."""
        self.to_tell, self.has_left = {}, True
        news = (PeerStatus(self.me, self.address, self.incarnation, "lost"),)
        for peer in self.living:
            self.outbox.append((peer, Ping(self._number(), news)))

    def unreachable(self, peer: NodeId, now: float) -> None:
        """Suspect a peer because the connection to it broke."""
        if peer in self.members:
            self._suspect(peer, now)

    def gone(self, peer: NodeId) -> list[PeerEvent]:
        """Declare a peer lost because its process has ended: nothing listens at its address."""
        member = self.members.get(peer)
        if member is None:
            return []
        member.has_ended = True
        return list(self._declare_lost(peer)) if member.state != "lost" else []

    def may_return(self, now: float) -> list[NodeId]:
        """Return the lost peers that may only be busy: not ended, not left, and not hung yet.

        Hung peers are detected in the same way as hung workers of a hub. Peers that were replaced on their machine are
        left out.
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
        """Process a message of a peer. Replies are added to the outbox."""
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
        """Record that a peer is running because it sent a message. A peer that has left stays lost."""
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
        """Carry out the actions that are due."""
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
        """Return the time when a suspected peer counts as lost.

        The time to refute a suspicion grows with the size of the mesh, because news takes longer, and with the peer's
        longest step.
        """
        least = self.settings.suspicion_seconds * max(1.0, log2(len(self.members) + 1) / 2)
        return self.suspected[peer] + max(least, STEPS_SUSPECTED * self.members[peer].step_seconds)

    def _ping_next(self, now: float) -> None:
        """Ping the next peer in a shuffled order, unless it sent a message within a period and there is no news."""
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
        """Ask other peers to ping a peer with a late reply. If they were asked already, suspect it."""
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
        """Notify a peer that it is suspected, so it can refute that early."""
        self.suspected[peer] = now
        self._send(peer, Ping(self._number()))

    def _declare_lost(self, peer: NodeId) -> Iterator[PeerEvent]:
        member = self.members[peer]
        member.state = "lost"
        self.suspected.pop(peer, None)
        self.to_tell[peer] = self._repeats()
        yield PeerLost(peer)

    # --- news ----------------------------------------------------------------------------------

    def _all_learned(self, news: Iterable[PeerStatus], now: float, teller: NodeId) -> Iterator[PeerEvent]:
        for one in news:
            yield from self._learn(one, now, teller)

    def _learn(self, news: PeerStatus, now: float, teller: NodeId) -> Iterator[PeerEvent]:
        """Apply news of a peer if it is newer than the known state."""
        peer, address, incarnation, state = news
        if peer == self.me:
            if state != "alive" and incarnation >= self.incarnation and not self.has_left:
                self.incarnation = incarnation + 1
                self.to_tell[peer] = self._repeats()
            return
        member = self.members.get(peer)
        if member is None:  # considered lost until this news is applied
            member = self.members[peer] = KnownPeer(address, -1, "lost", now)
        rank = {"alive": 0, "suspected": 1, "lost": 2}
        if (incarnation, rank[state]) <= (member.incarnation, rank[member.state]):
            return
        timeout = max(self.settings.suspicion_seconds, STEPS_SUSPECTED * member.step_seconds)
        was_heard = member.state != "lost" and now - member.heard_at < timeout
        if state == "lost" and was_heard and teller != peer:
            return  # only others cannot reach it; it will refute that
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
        """Add a message with news to the outbox."""
        news = self._news(receiver, tell_all)
        match message:
            case Ping(number):
                message = Ping(number, news, self.step_seconds)
            case Ack(number):
                message = Ack(number, news, self.step_seconds)
            case PingRequest(number, peer):
                message = PingRequest(number, peer, news)
        self.outbox.append((receiver, message))

    def _news(self, receiver: NodeId, tell_all: bool) -> tuple[PeerStatus, ...]:
        """Return the news to send: of this peer, of a suspected or lost receiver, then the least-sent news."""
        first = [self.me]
        member = self.members.get(receiver)
        if member is not None and member.state != "alive":
            first.append(receiver)
        urgent = sorted(self.to_tell, key=lambda peer: -self.to_tell[peer])
        names = dict.fromkeys([*first, *urgent, *(self.members if tell_all else ())])
        chosen = list(names) if tell_all else list(names)[:MAX_NEWS]
        for peer in chosen:
            if peer in self.to_tell:
                self.to_tell[peer] -= 1
                if self.to_tell[peer] <= 0:
                    del self.to_tell[peer]
        return tuple(self._known(peer) for peer in chosen)

    def _known(self, peer: NodeId) -> PeerStatus:
        if peer == self.me:
            return PeerStatus(peer, self.address, self.incarnation, "alive")
        member = self.members[peer]
        return PeerStatus(peer, member.address, member.incarnation, member.state)

    def _repeats(self) -> int:
        """Return how often to send an item of news for it to reach all peers with high probability."""
        return 3 * ceil(log2(len(self.members) + 2))

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers
