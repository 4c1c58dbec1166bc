"""Topologies of a mesh: the choice of the next peer to exchange models with."""

from random import Random
from typing import Literal

from oddlot.core.strategy import View
from oddlot.core.support.errors import UsageError
from oddlot.core.tasks import NodeId, machine_of

Topology = Literal["random", "ring", "hypercube", "exponential", "matching"]
TOPOLOGIES: tuple[Topology, ...] = ("random", "ring", "hypercube", "exponential", "matching")


def topology(value: object) -> str:
    """Return a description of valid names if a topology is unknown, else an empty string."""
    return "" if value in TOPOLOGIES else f"one of {', '.join(TOPOLOGIES)}"


def check_topology(name: Topology, peers: int) -> None:
    """Raise UsageError if a topology does not exist for this number of peers."""
    if peers < 2:
        message = f"a mesh needs at least 2 peers, and there is {peers}: start more workers"
        raise UsageError(message, "too_few_peers", "workers", given=peers)
    if name == "hypercube" and peers & (peers - 1):
        below = 1 << (peers.bit_length() - 1)
        message = (
            f"topology = 'hypercube' needs a power of two of peers, and there are {peers}: use {below} or "
            f"{2 * below} workers, or topology = 'exponential'"
        )
        raise UsageError(message, "topology_does_not_fit", "topology", given=peers, topology=name)


def partner(name: Topology, view: View, turn: int) -> NodeId | None:
    """Return the peer for exchange number `turn` of this peer, or None if no such peer is active.

    - `random`: any peer, each with the same probability.
    - `ring`: the right and the left neighbor in turn.
    - `exponential`: the peer 1, 2, 4, ... positions further in turn (Ying et al., NeurIPS 2021, one-peer exponential
      graph).
    - `hypercube`: the peer with a number that differs in one bit, bit after bit. If it is lost, there is no exchange.
    - `matching`: the partner in a random matching. All peers draw the same matching for each turn.
    """
    mesh = list(view.mesh)
    if len(mesh) < 2:
        return None
    me, count = mesh.index(view.me), len(mesh)
    match name:
        case "random":
            return view.rng.choice([peer for peer in mesh if peer != view.me])
        case "ring":
            return mesh[(me + (1 if turn % 2 == 0 else -1)) % count]
        case "exponential":
            return mesh[(me + (1 << turn % (count - 1).bit_length())) % count]
        case "hypercube":
            return _across(view, turn)
        case "matching":
            return _matched(mesh, me, turn)


def ring_neighbors(view: View) -> list[NodeId]:
    """Return the left and right neighbors of this peer on the ring. With two peers there is one; with one peer,
    none."""
    mesh = list(view.mesh)
    me = mesh.index(view.me)
    both = dict.fromkeys((mesh[me - 1], mesh[(me + 1) % len(mesh)]))
    return [peer for peer in both if peer != view.me]


def _across(view: View, turn: int) -> NodeId | None:
    """Return the active peer of the machine with a number that differs in bit `turn`."""
    machines = list(view.machines)
    bits = max(1, (len(machines) - 1).bit_length())
    number = machines.index(machine_of(view.me)) ^ (1 << turn % bits)
    other = machines[number] if number < len(machines) else ""
    return next((peer for peer in view.peers if machine_of(peer) == other), None)


def _matched(mesh: list[NodeId], me: int, turn: int) -> NodeId | None:
    """Return the partner in the matching of this turn, or None for the peer left over from an odd number."""
    order = list(range(len(mesh)))
    Random(f"matching {turn}").shuffle(order)
    place = order.index(me) ^ 1
    return mesh[order[place]] if place < len(order) else None
