"""What a run costs: every machine's time at the price of that time, from the log alone."""

from dataclasses import dataclass, field

from oddlot.core import words as w


@dataclass(slots=True)
class Account:
    """What one life of a machine costs."""

    price: float
    """dollars an hour, now"""
    zone: str
    since: float
    """it is paid for until then"""
    dollars: float = 0.0

    def pay(self, now: float) -> None:
        """At the price that it has had since it was paid the last time."""
        self.dollars += self.price * (now - self.since) / 3600
        self.since = now


@dataclass
class Bill:
    """Kept up to date record by record; times are seconds of the run's clock."""

    now: float = 0.0
    dollars: float = 0.0
    dollars_lost: float = 0.0
    """of these, for the time that machines had spent on work which was lost with them"""
    dollars_of_hub: float = 0.0
    """of these"""
    seconds_alone: float = 0.0
    """in which no machine was there"""
    accounts: dict[w.NodeId, Account] = field(default_factory=dict)
    here: dict[w.NodeId, Account] = field(default_factory=dict)
    """of those that are there"""
    hub_price: float = 0.0
    dollars_per_second: float = 0.0

    def advance(self, now: float) -> None:
        """Time has passed, and cost its money."""
        passed = now - self.now
        self.dollars += self.dollars_per_second * passed
        self.dollars_of_hub += self.hub_price * passed / 3600
        self.seconds_alone += 0.0 if self.here else passed
        self.now = now

    def joined(self, event: w.Joined) -> None:
        """A machine is there, and has cost something before."""
        account = Account(event.dollars_per_hour, event.zone, self.now, event.dollars_to_start)
        self.accounts[event.node] = self.here[event.node] = account
        self.dollars_per_second += account.price / 3600
        self.dollars += account.dollars

    def priced(self, zone: str, price: float) -> None:
        """From now on everything that was bought there, or the hub (empty), costs this much."""
        if not zone:
            self.dollars_per_second += (price - self.hub_price) / 3600
            self.hub_price = price
            return
        for account in self.here.values():
            if account.zone == zone:
                account.pay(self.now)
                self.dollars_per_second += (price - account.price) / 3600
                account.price = price

    def lost(self, node: w.NodeId, since: float, at_work_since: float | None) -> None:
        """It went then, and had been at work that is lost with it."""
        account = self.here.pop(node, None)
        if account is None:
            return
        account.pay(since)
        self.dollars -= account.price * (self.now - since) / 3600
        if at_work_since is not None:
            self.dollars_lost += account.price * max(0.0, since - at_work_since) / 3600
        # Nobody costs nothing, whatever the last digits say.
        rest = self.dollars_per_second - account.price / 3600 if self.here else self.hub_price / 3600
        self.dollars_per_second = max(0.0, rest)

    def stopped(self, dollars: float) -> None:
        """The hub was gone, and as far as the log knows everybody with it, since the last record; it cost this much."""
        for account in self.here.values():
            account.pay(self.now)
        self.here.clear()
        self.dollars_per_second = self.hub_price = 0.0
        self.dollars += dollars
