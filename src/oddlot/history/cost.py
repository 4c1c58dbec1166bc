"""The cost of a run, computed from its log as the sum of time x price over all machines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from oddlot.core.events import Gone, Joined, Lost, Ordered, Priced, Resumed
from oddlot.core.tasks import NodeId
from oddlot.history.worker_timeline import WorkerStates


@dataclass(slots=True)
class Account:
    """The cost of a machine since it was ordered. A resumed peer of a mesh continues its account."""

    zone: str
    prices: list[tuple[float, float]]
    """Price changes: time, and dollars per hour."""
    ended: float | None = None

    @property
    def price(self) -> float:
        """Return the current price, in dollars per hour."""
        return self.prices[-1][1]

    def dollars(self, until: float, since: float = 0.0) -> float:
        """Return the cost from `since` to `until`, in dollars."""
        until = until if self.ended is None else min(until, self.ended)
        spells = pairwise([*self.prices, (inf, 0.0)])
        return sum(
            price * max(0.0, min(until, stop) - max(since, start)) / 3600
            for (start, price), (stop, _) in spells
        )


@dataclass
class Cost:
    """The cost of a run, updated by each record. Times are in seconds of the run's clock."""

    now: float = 0.0
    dollars: float = 0.0
    """Cost so far in dollars, including lost work."""
    dollars_lost: float = 0.0
    """Part of the cost for work that was lost with machines and for machines that were lost while starting, without the
    lost work of a resume."""
    dollars_of_hub: float = 0.0
    """Part of the cost for the hub."""
    seconds_alone: float = 0.0
    """Seconds without any machine, without lost work of a resume."""
    seconds_served: float = 0.0
    """Seconds with at least one available machine, without lost work of a resume."""
    worker_seconds: float = 0.0
    """Available seconds, summed over machines."""
    accounts: dict[NodeId, Account] = field(default_factory=dict)
    paid: dict[NodeId, Account] = field(default_factory=dict)
    """Machines that are billed now."""
    here: dict[NodeId, None] = field(default_factory=dict)
    """Available workers."""
    hub_price: float = 0.0
    dollars_per_second: float = 0.0

    def advance(self, now: float) -> None:
        """Advance the time and add its cost."""
        passed = now - self.now
        self.dollars += self.dollars_per_second * passed
        self.dollars_of_hub += self.hub_price * passed / 3600
        self.seconds_alone += 0.0 if self.here else passed
        self.seconds_served += passed if self.here else 0.0
        self.worker_seconds += passed * len(self.here)
        self.now = now

    def hear(
        self, event: Joined | Priced | Ordered | Gone | Lost, workers: Mapping[NodeId, WorkerStates]
    ) -> None:
        """Process an event. `workers` are the workers that joined before it."""
        match event:
            case Ordered(node, price, zone):
                self.ordered(node, price, zone)
            case Joined():
                self.joined(event)
            case Priced(zone, price):
                self.priced(zone, price)
            case Gone(node) | Lost(node):
                worker = workers.get(node)
                self.gone(node)
                if worker is None:
                    self.lost(node, 0.0)
                elif isinstance(event, Lost) and worker.tasks:
                    self.lost(node, max(worker.begun, worker.heard))

    @property
    def presence(self) -> dict[str, float | None]:
        """Return availability and mean number of machines for a summary, or None before any time has passed."""
        seconds = self.seconds_served + self.seconds_alone
        return {
            "seconds_without_workers": self.seconds_alone,
            "availability": self.seconds_served / seconds if seconds else None,
            "workers_mean": self.worker_seconds / seconds if seconds else None,
        }

    def ordered(self, node: NodeId, price: float, zone: str) -> None:
        """Start paying for a machine. Continue its account if it has one."""
        earlier = self.accounts.get(node)
        paid = [*earlier.prices, (earlier.ended or 0.0, 0.0)] if earlier else []
        self.accounts[node] = self.paid[node] = Account(zone, [*paid, (self.now, price)])
        self.dollars_per_second += price / 3600

    def joined(self, event: Joined) -> None:
        """Record that a machine is available."""
        if event.node not in self.paid:
            self.ordered(event.node, event.dollars_per_hour, event.zone)
        self.here[event.node] = None

    def priced(self, zone: str, price: float) -> None:
        """Change the price of a zone's machines or, if `zone` is empty, of the hub."""
        if not zone:
            self.dollars_per_second += (price - self.hub_price) / 3600
            self.hub_price = price
            return
        for account in self.paid.values():
            if account.zone == zone:
                self.dollars_per_second += (price - account.price) / 3600
                account.prices.append((self.now, price))

    def gone(self, node: NodeId) -> None:
        """Stop paying for a machine."""
        self.here.pop(node, None)
        account = self.paid.pop(node, None)
        if account is None:
            return
        account.ended = self.now
        # Without machines the price is 0, without rounding errors.
        rest = self.dollars_per_second - account.price / 3600 if self.paid else self.hub_price / 3600
        self.dollars_per_second = max(0.0, rest)

    def lost(self, node: NodeId, at_work_since: float) -> None:
        """Count the work of a machine since its last finished task as lost."""
        if account := self.accounts.get(node):
            self.dollars_lost += account.dollars(self.now, at_work_since)

    def stopped(self, event: Resumed, now: float) -> None:
        """Record a resume: all machines ended at the last record. Add the cost of the lost work from the event."""
        for account in self.paid.values():
            account.ended = self.now
        self.paid.clear()
        self.here.clear()
        self.dollars_per_second = self.hub_price = 0.0
        self.dollars += event.dollars_lost
        self.dollars_of_hub += event.dollars_of_hub_lost
        self.now = now
