"""Membership of a mesh with simulated messages and broken connections."""

from collections.abc import Callable
from math import log2
from random import Random

import pytest

from oddlot.core.events import PeerJoined, PeerLost
from oddlot.core.membership import Membership, MembershipSettings
from oddlot.core.membership_messages import MembershipMessage
from oddlot.core.support.event_queue import EventQueue

SETTINGS = MembershipSettings(ping_seconds=0.5, suspicion_seconds=2.0, retry_seconds=2.0)


class World:
    """Simulated peers. Messages take 10 ms and are dropped if `is_cut(sender, receiver)`."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.events: EventQueue[None] = EventQueue()
        self.rng = Random(seed)
        self.peers: dict[str, Membership] = {}
        self.message: list[tuple[float, str, PeerJoined | PeerLost]] = []
        self.messages = 0
        self.is_cut: Callable[[str, str], bool] = lambda _, __: False
        for number in range(count):
            self.add(f"p{number}")
        for me, peer in self.peers.items():
            self.note(me, peer.meet({name: name for name in self.peers if name != me}, 0.0))

    def add(self, name: str) -> Membership:
        peer = Membership(name, name, Random(f"{name} {self.rng.random()}"), SETTINGS)
        peer.begin(self.events.now)
        self.peers[name] = peer
        self.events.at(self.events.now, lambda: self.tick(name))
        return peer

    def tick(self, name: str) -> None:
        if (peer := self.peers.get(name)) is not None:
            self.note(name, peer.tick(self.events.now))
            self.events.at(self.events.now + 0.05, lambda: self.tick(name))

    def note(self, me: str, events: list[PeerJoined | PeerLost]) -> None:
        now = self.events.now
        self.message += [(now, me, event) for event in events]
        messages, self.peers[me].outbox = self.peers[me].outbox, []
        for receiver, message in messages:
            self.messages += 1
            self.events.at(now + 0.01, lambda to=receiver, what=message: self.bring(me, to, what))  # type: ignore[misc]

    def bring(self, sender: str, receiver: str, message: MembershipMessage) -> None:
        if receiver in self.peers and not self.is_cut(sender, receiver):
            self.note(receiver, self.peers[receiver].receive(sender, message, self.events.now))

    def run(self, seconds: float) -> None:
        self.events.next(self.events.now + seconds)
        assert not self.events.heap or self.events.heap[0][0] >= self.events.now

    def known(self) -> dict[str, set[str]]:
        return {name: set(peer.living) for name, peer in self.peers.items()}

    def knows_all(self) -> bool:
        return all(living == self.peers.keys() - {name} for name, living in self.known().items())


@pytest.mark.parametrize("count", [2, 3, 8, 40])
def test_running_peers_stay_members(count: int) -> None:
    world = World(count)
    world.run(60)
    assert world.knows_all()
    assert not [event for _, _, event in world.message if isinstance(event, PeerLost)]


def test_messages_per_peer_do_not_grow_with_the_mesh() -> None:
    rates = []
    for count in (8, 40):
        world = World(count)
        world.run(60)
        rates.append(world.messages / count / 60)
    assert max(rates) <= 5.0
    assert rates[1] / rates[0] <= 1.3


@pytest.mark.parametrize("count", [2, 3, 8, 40])
def test_lost_peer_is_reported_once_to_every_peer(count: int) -> None:
    world = World(count)
    world.run(10)
    del world.peers["p1"]
    world.run(0.5 * (count + 2) + 2.0 + 0.5 * 3 * log2(count + 2))
    losses = [(me, event.peer) for _, me, event in world.message if isinstance(event, PeerLost)]
    assert sorted(losses) == sorted((name, "p1") for name in world.peers)


def test_new_peer_with_one_address_is_known_to_all() -> None:
    world = World(40)
    world.run(5)
    new = world.add("new")
    world.note("new", new.meet({"p3": "p3"}, world.events.now))
    new.greet("p3")
    world.note("new", [])
    world.run(0.05)
    assert len(new.living) == 40, "from the answer alone"
    world.run(10)
    assert world.knows_all()
    assert [me for _, me, event in world.message if event == PeerJoined("new")].count("p0") == 1


def test_one_broken_connection_loses_no_peer() -> None:
    """Other peers ping the peer that cannot be reached."""
    world = World(6)
    world.is_cut = lambda sender, receiver: {sender, receiver} == {"p0", "p1"}
    world.run(60)
    assert world.knows_all()


def test_members_return_after_a_partition() -> None:
    world = World(6)
    world.run(5)
    world.is_cut = lambda sender, receiver: (sender in {"p0", "p1"}) != (receiver in {"p0", "p1"})
    world.run(20)
    assert world.known()["p0"] == {"p1"}
    assert world.known()["p4"] == {"p2", "p3", "p5"}
    world.is_cut = lambda _, __: False
    world.run(30)
    assert world.knows_all()


def test_leaving_peer_is_removed_at_once() -> None:
    world = World(8)
    world.run(5)
    world.peers["p2"].leave()
    world.note("p2", [])
    del world.peers["p2"]
    world.run(0.1)
    assert world.knows_all()


def test_frozen_peer_is_lost_and_returns() -> None:
    world = World(4)
    world.run(5)
    world.is_cut = lambda sender, receiver: "p1" in {sender, receiver}
    world.run(15)
    assert all("p1" not in living for name, living in world.known().items() if name != "p1")
    world.is_cut = lambda _, __: False
    world.run(15)
    assert world.knows_all()


def test_messages_of_exchanges_replace_pings() -> None:
    world = World(2)
    for _ in range(200):
        world.run(0.1)
        for me, other in (("p0", "p1"), ("p1", "p0")):
            world.peers[me].heard(other, world.events.now)
    quiet = World(2)
    quiet.run(20)
    assert world.messages < quiet.messages / 2


def test_false_and_outdated_news_are_ignored() -> None:
    """A peer refutes news of its own loss, and ignores outdated news of others."""
    from oddlot.core.membership_messages import PeerStatus, Ping

    world = World(3)
    me = world.peers["p0"]
    me.receive("p1", Ping(1, (PeerStatus("p0", "p0", 4, "lost"), PeerStatus("p2", "p2", -1, "lost"))), 0.0)
    assert me.incarnation == 5
    assert set(me.living) == {"p1", "p2"}


@pytest.mark.parametrize("count", [8, 40])
def test_false_suspicion_is_refuted(count: int) -> None:
    world = World(count)
    world.run(5)
    world.peers["p0"].unreachable("p1", world.events.now)
    world.note("p0", [])
    world.run(20)
    assert not any(isinstance(event, PeerLost) for _, _, event in world.message)


def test_lost_messages_lose_no_peer() -> None:
    world, rng = World(40), Random(7)
    world.is_cut = lambda _, __: rng.random() < 0.05
    world.run(60)
    assert not any(isinstance(event, PeerLost) for _, _, event in world.message)


def test_message_of_a_lost_peer_restores_it_unless_it_left() -> None:
    world = World(3)
    me = world.peers["p0"]
    assert me.gone("p1") == [PeerLost("p1")]
    assert me.heard("p1", 1.0) == [PeerJoined("p1")]
    world.peers["p2"].leave()
    world.note("p2", [])
    world.run(5)
    assert "p2" not in me.living
    assert me.heard("p2", 2.0) == []


def test_silence_during_a_long_step_loses_no_peer() -> None:
    world = World(4)
    world.peers["p1"].step_seconds = 8.0
    world.run(10)
    world.is_cut = lambda sender, receiver: "p1" in {sender, receiver}
    world.run(8.5)
    assert [event for _, me, event in world.message if isinstance(event, PeerLost) and me != "p1"] == []
    world.run(20)
    assert all("p1" not in living for name, living in world.known().items() if name != "p1")


def test_lost_peer_may_return_until_it_counts_as_hung() -> None:
    def lost() -> Membership:
        world = World(3)
        world.is_cut = lambda sender, receiver: "p1" in {sender, receiver}
        world.run(10)
        return world.peers["p0"]

    assert (lost().may_return(10.0), lost().may_return(31.0)) == (["p1"], [])
    slow = lost()
    slow.members["p1"].step_seconds = 8.0
    assert (slow.may_return(319.0), slow.may_return(321.0)) == (["p1"], []), "ten timeouts of four steps"
    ended, replaced = lost(), lost()
    ended.gone("p1")
    replaced.meet({"p1.2": "p1.2"}, 10.0)
    assert ended.may_return(10.0) == replaced.may_return(10.0) == []
