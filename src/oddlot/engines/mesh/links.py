"""Simulated links between peers: full duplex, with a queue in each direction."""

from dataclasses import dataclass, field

from oddlot.core.tasks import NodeId
from oddlot.machines.machine import Link


@dataclass
class Links:
    """The times at which the links of peers are free.

    A transfer occupies the sender's uplink and the receiver's downlink until both have carried its bytes, at the rate
    of the slower one. Messages without tensors are small: they take the latency and occupy nothing.
    """

    links: dict[NodeId, Link] = field(default_factory=dict)
    up_free_at: dict[NodeId, float] = field(default_factory=dict)
    down_free_at: dict[NodeId, float] = field(default_factory=dict)

    def transfer(self, sender: NodeId, receiver: NodeId, size: int, now: float) -> float:
        """Occupy both links with a transfer of `size` bytes. Return the time at which it has arrived."""
        up, down = self.links[sender], self.links[receiver]
        begin = max(now, self.up_free_at.get(sender, now), self.down_free_at.get(receiver, now))
        rate = min(up.megabits_per_second, down.megabits_per_second) * 1e6
        end = begin + size * 8 / rate
        self.up_free_at[sender] = self.down_free_at[receiver] = end
        return end + self.latency(sender, receiver)

    def latency(self, sender: NodeId, receiver: NodeId) -> float:
        """Return the seconds of a small message: half of each peer's latency to a hub in the middle."""
        both = self.links[sender].latency_milliseconds + self.links[receiver].latency_milliseconds
        return both / 2e3

    def remove(self, peer: NodeId) -> None:
        """Forget a peer."""
        for known in (self.links, self.up_free_at, self.down_free_at):
            known.pop(peer, None)
