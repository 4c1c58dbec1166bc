"""What a run costs: every machine's time at the price of that time, from the log alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from oddlot.core.events import Gone, Joined, Lost, Ordered, Priced, Resumed
from oddlot.core.tasks import NodeId
from oddlot.history.worker_timeline import Worker


@dataclass(slots=True)
class Account:
    """What one life of a machine costs, from its order on."""

    zone: str
    prices: list[tuple[float, float]]
    """since when, dollars an hour"""
    ended: float | None = None

    @property
    def price(self) -> float:
        """Dollars an hour, now."""
        return self.prices[-1][1]

    def dollars(self, until: float, since: float = 0.0) -> float:
        """What its time from `since` to `until` costs."""
        until = until if self.ended is None else min(until, self.ended)
        spells = pairwise([*self.prices, (inf, 0.0)])
        return sum(
            price * max(0.0, min(until, stop) - max(since, start)) / 3600
            for (start, price), (stop, _) in spells
        )


@dataclass
class Cost:
    """What a run costs, kept up to date record by record; times are seconds of the run's clock."""

    now: float = 0.0
    dollars: float = 0.0
    """only grows"""
    dollars_lost: float = 0.0
    """of these, for the time that machines had spent on work which was lost with them, or on starting in vain, in the
    history that holds"""
    dollars_of_hub: float = 0.0
    """of these"""
    seconds_alone: float = 0.0
    """in which no machine was there, in the history that holds"""
    seconds_served: float = 0.0
    """in which at least one machine was available, in the history that holds"""
    worker_seconds: float = 0.0
    """seconds in which machines were available, summed over machines"""
    accounts: dict[NodeId, Account] = field(default_factory=dict)
    paid: dict[NodeId, Account] = field(default_factory=dict)
    """those that cost something now"""
    here: dict[NodeId, None] = field(default_factory=dict)
    """who is at work, or could be"""
    hub_price: float = 0.0
    dollars_per_second: float = 0.0

    def advance(self, now: float) -> None:
        """Time has passed, and cost its money."""
        passed = now - self.now
        self.dollars += self.dollars_per_second * passed
        self.dollars_of_hub += self.hub_price * passed / 3600
        self.seconds_alone += 0.0 if self.here else passed
        self.seconds_served += passed if self.here else 0.0
        self.worker_seconds += passed * len(self.here)
        self.now = now

    def hear(self, event: Joined | Priced | Ordered | Gone | Lost, workers: Mapping[NodeId, Worker]) -> None:
        """Take an event into account; `workers` are those that joined before it."""
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
        """How long and how many machines were available, for a summary; None before any time has passed."""
        seconds = self.seconds_served + self.seconds_alone
        return {
            "seconds_without_workers": self.seconds_alone,
            "availability": self.seconds_served / seconds if seconds else None,
            "workers_mean": self.worker_seconds / seconds if seconds else None,
        }

    def ordered(self, node: NodeId, price: float, zone: str) -> None:
        """A machine is paid for from now on."""
        self.accounts[node] = self.paid[node] = Account(zone, [(self.now, price)])
        self.dollars_per_second += price / 3600

    def joined(self, event: Joined) -> None:
        """It is ready for work."""
        if event.node not in self.paid:
            self.ordered(event.node, event.dollars_per_hour, event.zone)
        self.here[event.node] = None

    def priced(self, zone: str, price: float) -> None:
        """From now on everything that was bought there, or the hub (empty), costs this much."""
        if not zone:
            self.dollars_per_second += (price - self.hub_price) / 3600
            self.hub_price = price
            return
        for account in self.paid.values():
            if account.zone == zone:
                self.dollars_per_second += (price - account.price) / 3600
                account.prices.append((self.now, price))

    def gone(self, node: NodeId) -> None:
        """It costs nothing any more."""
        self.here.pop(node, None)
        account = self.paid.pop(node, None)
        if account is None:
            return
        account.ended = self.now
        # Nobody costs nothing, whatever the last digits say.
        rest = self.dollars_per_second - account.price / 3600 if self.paid else self.hub_price / 3600
        self.dollars_per_second = max(0.0, rest)

    def lost(self, node: NodeId, at_work_since: float) -> None:
        """Its work since then is lost: nothing more of it comes in."""
        if account := self.accounts.get(node):
            self.dollars_lost += account.dollars(self.now, at_work_since)

    def stopped(self, event: Resumed, now: float) -> None:
        """The hub was gone, and as far as the log knows everybody with it, since the last record; what was paid for
        until now it says itself."""
        for account in self.paid.values():
            account.ended = self.now
        self.paid.clear()
        self.here.clear()
        self.dollars_per_second = self.hub_price = 0.0
        self.dollars += event.dollars_lost
        self.dollars_of_hub += event.dollars_of_hub_lost
        self.now = now
