"""Machines that a cloud sells: offers, zones, and the fleet that they make up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from oddlot.core.support.errors import UsageError
from oddlot.core.support.validation import AboveZero, AtLeastOne, NotNegative, check_settings
from oddlot.machines.buying import Buying
from oddlot.machines.capacity import Always, Capacity
from oddlot.machines.machine import Machine, node_name
from oddlot.machines.time_series import Steps


@dataclass(frozen=True, slots=True)
class Offer:
    """A machine type that a cloud sells.

    On demand, it has a fixed price and is not preempted. On the spot market, its price changes over time, and the
    zone's capacity decides how many machines are available.
    """

    name: str
    """Name of the machine type, such as `p3.2xlarge`."""
    dollars_per_hour: NotNegative
    """On-demand price, in dollars per hour."""
    spot_dollars_per_hour: Steps | None = None
    """Spot price over time, in dollars per hour. None if not sold on the spot market."""
    speed: AboveZero = 1.0
    """Speed relative to the machine of the zone's `seconds_per_sample` measurement. 2.0: twice as fast."""
    cores: AtLeastOne | None = None
    """Number of CPU cores. For information only."""
    gpu: str = ""
    """GPU model. For information only."""
    seconds_to_start: NotNegative = 0.0
    """Seconds from each start until the machine is ready for a task. They are billed."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class Zone:
    """A request for `count` machines of one offer. `capacity` decides how many are available."""

    name: Annotated[str, node_name]
    """Name of the zone. Its machines are NAME1, NAME2, ..."""
    offer: Offer
    """Machine type."""
    count: AtLeastOne
    """Number of machines that are requested all the time."""
    machine: Machine
    """Template of the machines, at speed 1. The zone and the offer set its name, price and start time."""
    capacity: Capacity = Always()  # noqa: RUF009 - frozen, and without state
    """Number of available machines over time."""
    spot: bool = True
    """Whether machines are bought on the spot market. False: on demand."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.spot and self.offer.spot_dollars_per_hour is None:
            message = f"{self.offer.name} has no spot price: set `spot_dollars_per_hour`, or buy on demand"
            raise UsageError(message, "no_spot_price", "offer", given=self.offer.name)

    @property
    def names(self) -> list[str]:
        """Names of the machines."""
        return [f"{self.name}{number + 1}" for number in range(self.count)]

    @property
    def machines(self) -> list[Machine]:
        """All machines of the zone."""
        one = replace(
            self.machine,
            seconds_per_sample=self.machine.seconds_per_sample / self.offer.speed,
            dollars_per_hour=self.prices.at(0.0),
            seconds_to_start=self.offer.seconds_to_start,
            # A lost machine is replaced while the zone has capacity.
            seconds_to_return=self.machine.seconds_to_return or 0.0,
            zone=self.name,
        )
        return [replace(one, name=name) for name in self.names]

    @property
    def prices(self) -> Steps:
        """Price of one machine over time, in dollars per hour."""
        if self.spot and self.offer.spot_dollars_per_hour is not None:
            return self.offer.spot_dollars_per_hour
        return Steps((0.0,), (self.offer.dollars_per_hour,))

    def on_demand(self) -> "Zone":
        """Return the zone with the same machines, bought on demand."""
        return replace(self, spot=False, capacity=Always(), machine=replace(self.machine, lifetime=None))

    @property
    def substitute(self) -> "Zone":
        """Return a zone with an on-demand machine for each machine, named `NAME-on-demand1` and so on."""
        return replace(self.on_demand(), name=f"{self.name}-on-demand")


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub's machine: its price, and the time to merge an update. It is always on demand.

    Updates wait in a queue while all `servers` are busy. With transactions, one server at a time reads and writes the
    model, so more servers are not faster.

    Paper: Atre, Jha, Rao (ScaDL 2021), with several parameter servers on a store of strong consistency (MySQL, 1.29 s
    per update) or eventual consistency (Redis, 0.87 s per update).
    """

    dollars_per_hour: NotNegative = 0.0
    """Price of the hub's machine, in dollars per hour."""
    seconds_per_update: NotNegative = 0.0
    """Seconds that a server takes to merge an update."""
    servers: AtLeastOne = 1
    """Number of server processes that merge updates. More than one are faster only with `overwrites`."""
    overwrites: bool = False
    """Whether the store has no transactions: a server overwrites what other servers wrote since it read the model. Such
    updates are counted as `overwritten`."""

    def __post_init__(self) -> None:
        check_settings(self)
        needed = "seconds_per_update"
        if self.overwrites and not self.seconds_per_update:
            message = f"overwrites needs {needed}: updates that take no time are never overwritten"
            raise UsageError(message, "missing_setting", "overwrites", name=needed)
        if self.servers > 1 and not self.seconds_per_update:
            message = (
                f"servers = {self.servers} needs {needed}: updates that take no time need only one server"
            )
            raise UsageError(message, "missing_setting", "servers", name=needed)


def names_in(fleet: Sequence[Machine | Zone]) -> list[str]:
    """Return the names of all machines, in their order, without creating the machines."""
    return [name for one in fleet for name in (one.names if isinstance(one, Zone) else [one.name])]


def all_machines(fleet: Sequence[Machine | Zone]) -> Iterator[Machine]:
    """Yield the single machines and the machines of zones, in their order."""
    for one in fleet:
        if isinstance(one, Zone):
            yield from one.machines
        else:
            yield one


def spot_zones(fleet: Sequence[Machine | Zone]) -> list[Zone]:
    """Return the zones that are bought on the spot market."""
    return [one for one in fleet if isinstance(one, Zone) and one.spot]


def check_buying(fleet: Sequence[Machine | Zone], buying: Buying | None) -> None:
    """Raise UsageError if a buying policy has no spot zone to add machines to."""
    if buying is not None and not spot_zones(fleet):
        message = "the fleet has no spot zone, so the buying policy has no effect: add a zone, or leave `buying` out"
        raise UsageError(message, "no_spot_zone", "buying")


@dataclass(frozen=True)
class Fleet:
    """The machines and zones of a fleet, and the hub's machine."""

    machines: Sequence[Machine | Zone]
    """Single machines and zones."""
    hub: Hub = Hub()
    """The hub's machine."""
    buying: Buying | None = None
    """Policy that adds on-demand machines to meet a deadline. None: the machines do not change."""

    def __post_init__(self) -> None:
        check_buying(self.machines, self.buying)

    def on_demand(self) -> "Fleet":
        """Return the fleet with every zone bought on demand."""
        bought = [one.on_demand() if isinstance(one, Zone) else one for one in self.machines]
        return replace(self, machines=bought, buying=None)

    @property
    def has_spot(self) -> bool:
        """Whether any zone is bought on the spot market."""
        return bool(spot_zones(self.machines))
