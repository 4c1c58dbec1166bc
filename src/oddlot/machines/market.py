"""What machines are bought, where, at what price: offers and zones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from oddlot.core.errors import UsageError
from oddlot.core.validation import AboveZero, AtLeastOne, NotNegative, check_settings
from oddlot.machines.capacity import Always, Capacity
from oddlot.machines.machine import Machine, node_name
from oddlot.machines.time_series import Steps


@dataclass(frozen=True, slots=True)
class Offer:
    """A kind of machine that a cloud sells. On demand it costs one price and stays; on the spot market it costs what
    `spot_dollars_per_hour` says at each time, and comes and goes with the zone's capacity.
    """

    name: str
    dollars_per_hour: NotNegative
    """on demand"""
    spot_dollars_per_hour: Steps | None = None
    """None: it is not sold on the spot market"""
    speed: AboveZero = 1.0
    """of its work, relative to the machine that a zone's `seconds_per_sample` was measured on"""
    cores: AtLeastOne | None = None
    gpu: str = ""
    seconds_to_start: NotNegative = 0.0
    """from the order to the first task: they are paid for"""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class Zone:
    """`count` machines of one offer are wanted in one place all the time; `capacity` says how many there are."""

    name: Annotated[str, node_name]
    """the machines are called NAME1, NAME2, ..."""
    offer: Offer
    count: AtLeastOne
    machine: Machine
    """what each of them is like at speed 1; its name, price and start are the zone's and the offer's"""
    capacity: Capacity = Always()  # noqa: RUF009 - frozen, and without state
    spot: bool = True
    """bought on the spot market; otherwise on demand"""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.spot and self.offer.spot_dollars_per_hour is None:
            told = f"{self.offer.name} has no spot price: give it one, or buy on demand"
            raise UsageError(told, "no_spot_price", "offer", given=self.offer.name)

    @property
    def names(self) -> list[str]:
        """The machines'."""
        return [f"{self.name}{number + 1}" for number in range(self.count)]

    @property
    def machines(self) -> list[Machine]:
        """All of them."""
        one = replace(
            self.machine,
            seconds_per_sample=self.machine.seconds_per_sample / self.offer.speed,
            dollars_per_hour=self.prices.at(0.0),
            seconds_to_start=self.offer.seconds_to_start,
            # Whatever ends a life, another machine is ordered as long as the zone has one.
            seconds_to_return=self.machine.seconds_to_return or 0.0,
            zone=self.name,
        )
        return [replace(one, name=name) for name in self.names]

    @property
    def prices(self) -> Steps:
        """Dollars an hour for one machine, over time."""
        if self.spot and self.offer.spot_dollars_per_hour is not None:
            return self.offer.spot_dollars_per_hour
        return Steps((0.0,), (self.offer.dollars_per_hour,))

    def on_demand(self) -> "Zone":
        """The same machines, which stay and cost more."""
        return replace(self, spot=False, capacity=Always(), machine=replace(self.machine, lifetime=None))


@dataclass(frozen=True, slots=True)
class Hub:
    """The machine on which the model lies: what it costs, and how fast it takes updates in.

    `servers` processes take `seconds_per_update` for each, so that updates wait where they come faster. With
    `overwrites`, the store is one without transactions: a server that has read the model before another one wrote to
    it writes over that (counted apart, as `overwritten`).

    Paper: Atre, Jha, Rao (ScaDL 2021): several parameter servers, a strong (MySQL, 1.29 s) or eventual (Redis, 0.87 s)
    store.
    """

    dollars_per_hour: NotNegative = 0.0
    seconds_per_update: NotNegative = 0.0
    servers: AtLeastOne = 1
    overwrites: bool = False

    def __post_init__(self) -> None:
        check_settings(self)
        needed = "seconds_per_update"
        if self.overwrites and not self.seconds_per_update:
            told = f"overwrites needs {needed}: only what takes time can be overwritten"
            raise UsageError(told, "missing_setting", "overwrites", name=needed)
        if self.servers > 1 and not self.seconds_per_update:
            told = f"servers needs {needed}: what takes no time needs no second server"
            raise UsageError(told, "missing_setting", "servers", name=needed)


def names_in(fleet: Sequence[Machine | Zone]) -> list[str]:
    """What the machines are called, in their order, without making them."""
    return [name for one in fleet for name in (one.names if isinstance(one, Zone) else [one.name])]


def all_machines(fleet: Sequence[Machine | Zone]) -> Iterator[Machine]:
    """The single machines and those of the zones, in their order."""
    for one in fleet:
        if isinstance(one, Zone):
            yield from one.machines
        else:
            yield one


@dataclass(frozen=True)
class Fleet:
    """What a fleet file tells: machines, zones, and the hub."""

    machines: Sequence[Machine | Zone]
    hub: Hub = Hub()

    def on_demand(self) -> "Fleet":
        """The same with every zone bought on demand."""
        bought = [one.on_demand() if isinstance(one, Zone) else one for one in self.machines]
        return replace(self, machines=bought)

    @property
    def has_spot(self) -> bool:
        """Some of it is bought on the spot market."""
        return any(isinstance(one, Zone) and one.spot for one in self.machines)
