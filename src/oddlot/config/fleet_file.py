"""A fleet file describes simulated machines: single machines, zones of a cloud, and the hub's machine.

[[machines]]
name = "spot"
count = 8                                       # spot1 ... spot8
seconds_per_sample = 0.002
delay = { kind = "lognormal", cv = 0.3 }        # or { kind = "trace", file = "slowdowns.txt" }
link = { megabits_per_second = 100, latency_milliseconds = 20 }
dollars_per_hour = 0.35
lifetime = { kind = "exponential", mean_seconds = 3600 }
seconds_to_return = 120

[[offers]]
name = "p3.2xlarge"
dollars_per_hour = 3.06                         # on demand
spot_dollars_per_hour = { kind = "aws", file = "prices.csv.gz", instance = "p3.2xlarge", zone = "us-east-1c" }
seconds_to_start = 120

[[zones]]
name = "east"                                   # east1 ... east8
offer = "p3.2xlarge"
count = 8
seconds_per_sample = 0.001                      # of a machine of speed 1
capacity = { kind = "alive", file = "alive.csv", of = 16, begin_hours = 6 }

[hub]
dollars_per_hour = 0.2

[buying]                                        # adds on-demand machines to spot zones
deadline_hours = 6
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator, ValidationInfo, create_model

from oddlot.config.dataclass_tables import Maker, TableChoice, as_fault, column, given, table_of
from oddlot.config.path_arguments import numbers, path_of, read_lines
from oddlot.config.toml_errors import Table, about, at_line, locate, read_table
from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.core.support.validation import AboveZero, AtLeastOne, NotNegative, hints_of
from oddlot.machines import capacity, delay_models as delays, market_traces as traces
from oddlot.machines.buying import Buying
from oddlot.machines.machine import Lifetime, Machine
from oddlot.machines.market import Fleet, Hub, Offer, Zone
from oddlot.machines.text_files import checked_path
from oddlot.machines.time_series import Steps

MAX_MACHINES = 1_000_000
KINDS: dict[str, type[delays.Delay]] = {
    "deterministic": delays.Deterministic,
    "exponential": delays.Exponential,
    "lognormal": delays.Lognormal,
    "erlang": delays.Erlang,
    "shifted_exponential": delays.ShiftedExponential,
}


def _read_trace(file: object, info: ValidationInfo) -> delays.Trace:
    with as_fault():
        return delays.Trace(read_lines(file, info, "multipliers", partial(numbers, above_zero=True)))


def _path_of(file: object, info: ValidationInfo) -> Path:
    with as_fault():
        return path_of(file, info)


class TraceTable(Maker):
    """Recorded times, replayed in their order and repeated. Give either `multipliers` or a `file`."""

    makes = delays.Trace
    kind: str
    multipliers: Annotated[tuple[float, ...], Field(strict=False)] | None = None
    """Factors of the mean time, each above 0."""
    file: Annotated[delays.Trace, PlainValidator(_read_trace)] | None = None
    """Text file with one multiplier per line. The path is relative to the fleet file."""

    def make(self) -> delays.Trace:
        """Return the trace."""
        if (self.multipliers is None) == (self.file is None):
            message = "a trace needs exactly one of `multipliers` and `file`"
            both = [] if self.file is None else ["multipliers", "file"]
            raise UsageError(message, "not_one_of", "kind", given=both)
        return self.file or delays.Trace(self.multipliers or ())


class LifetimeTable(Maker):
    """A distribution of lifetimes and its mean."""

    mean_seconds: float
    """Mean lifetime, in seconds."""

    def make(self) -> Lifetime:
        """Return the lifetime."""
        return Lifetime(self.mean_seconds, super().make())


DELAY_TABLES = {name: table_of(kind, kind=name) for name, kind in KINDS.items()} | {"trace": TraceTable}
LIFETIME_TABLES = {
    name: create_model(
        "LifetimeTable", __base__=(LifetimeTable, table), mean_seconds=(column(AboveZero), ...)
    )
    for name, table in DELAY_TABLES.items()
}
CHOICES = {delays.Delay: TableChoice("kind", DELAY_TABLES), Lifetime: TableChoice("kind", LIFETIME_TABLES)}


class CountTable(Maker):
    """Several machines that are alike."""

    count: column(AtLeastOne) | None = None  # type: ignore[valid-type]  # a hint with its check
    """Number of machines: NAME1, NAME2, ... Default: one machine, called NAME."""


MachineTable = create_model(
    "MachineTable",
    __base__=(CountTable, table_of(Machine, choices=CHOICES)),
    seconds_per_sample=(column(AboveZero), ...),
)
"""A machine, or `count` machines numbered from 1."""


# --- prices and capacities -----------------------------------------------------------------------


class Constant(Maker):
    """A constant price. A number instead of the table means the same."""

    kind: str
    dollars_per_hour: column(NotNegative)  # type: ignore[valid-type]  # a hint with its check
    """Price, in dollars per hour."""

    def make(self) -> Steps:
        """Return the price over time."""
        return Steps((0.0,), (self.dollars_per_hour,))


class Recorded(Maker):
    """A part of a recorded trace, once or repeated."""

    kind: str
    file: Annotated[Path, PlainValidator(_path_of)]
    """Trace file; gzipped if its name ends in `.gz`. The path is relative to the TOML file."""
    begin_hours: column(NotNegative) = 0.0  # type: ignore[valid-type]  # a hint with its check
    """Start position in the trace, in hours."""
    repeat_hours: column(AboveZero) | None = None  # type: ignore[valid-type]
    """Hours of the trace to repeat. By default, the trace is not repeated, and its last value is held."""
    faster: column(AboveZero) = 1.0  # type: ignore[valid-type]
    """Speed factor. 60: one recorded hour takes one minute."""
    reader: ClassVar[Callable[..., Steps]]
    """Reads the file. Its arguments are the keys of a subclass."""

    def make(self) -> Any:
        """Return the selected part of the trace."""
        options = self.model_fields_set & signature(type(self).reader).parameters.keys()
        steps: Steps = type(self).reader(self.file, **{name: getattr(self, name) for name in options})
        if (hours := steps.seconds[-1] / 3600) < self.begin_hours:
            sentence = f"begin_hours = {self.begin_hours:g}: {self.file} ends after {hours:,.1f} hours"
            raise UsageError(sentence, "begins_after_end", "begin_hours", given=self.begin_hours, hours=hours)
        period = None if self.repeat_hours is None else 3600 * self.repeat_hours
        return steps.window(3600 * self.begin_hours, period, self.faster)


class AwsPrices(Recorded):
    """Prices from AWS's spot price history, a CSV file.

    Its columns are `availability_zone`, `instance_type`, `timestamp` and `spot_price_usd`.
    """

    reader = staticmethod(traces.read_aws_prices)
    instance: str
    """Instance type, such as `p3.2xlarge`."""
    zone: str
    """Availability zone, such as `us-east-1c`."""


class AzurePrices(Recorded):
    """Daily prices of Azure machine sizes, from a CSV file with a column `Date` and one column per size."""

    reader = staticmethod(traces.read_azure_prices)
    size: str
    """Machine size: the name of its column."""


class Counted(Recorded):
    """A recorded number of available machines, up to the `count` of the zone."""

    of: column(AtLeastOne) | None = None  # type: ignore[valid-type]
    """Number of machines that was requested when the trace was recorded: available = round(value / of * count).
    Default: available = min(value, count)."""

    def make(self) -> Any:
        """Return the capacity model."""
        return capacity.Alive(super().make(), self.of)


class AliveTrace(Counted):
    """A text file with lines `time,alive`: the number of available machines from that time on."""

    reader = staticmethod(traces.read_alive)
    unit: str = "seconds"
    """Unit of the times: `"seconds"` or `"hours"`."""


class SkypilotTrace(Counted):
    """A JSON trace of SkyPilot: numbers of available instances at a fixed interval."""

    reader = staticmethod(traces.read_skypilot)
    inverted: bool = False
    """Whether 0 means available and 1 means preempted."""


class GcpProbe(Counted):
    """The log of a probe that repeatedly requests one GCP instance: Narayanan et al., "Analysis and Exploitation of
    Dynamic Pricing in the Public Cloud for ML Training" (2020).
    """

    reader = staticmethod(traces.read_gcp_probe)
    gpu: str
    """GPU model, such as `v100`."""
    zone: str
    """Zone of the instance, such as `us-west1-b`."""
    gpus: column(AtLeastOne) = 1  # type: ignore[valid-type]
    """Number of GPUs of the instance."""


class PriceChoice(TableChoice):
    """A price over time, or a number for a constant price."""

    def read(self, value: Any, info: ValidationInfo) -> Table:
        """Return the table of the kind that the value names."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            if not 0 <= value < inf:
                name, must = info.field_name, "finite and not negative"
                message = f"`{name}` is {value!r}: it must be {must}"
                raise about(UsageError(message, "invalid_value", name=name, given=value, must=must))
            return super().read({"kind": "constant", "dollars_per_hour": value}, info)
        if not isinstance(value, dict):
            message = f"{info.field_name} = {value!r} must be a number or a table with a price over time"
            raise about(UsageError(message, "no_price", name=info.field_name, given=value))
        return super().read(value, info)


PRICES = PriceChoice("kind", {"constant": Constant, "aws": AwsPrices, "azure": AzurePrices})
CAPACITIES = TableChoice(
    "kind",
    {
        "always": table_of(capacity.Always, kind="always"),
        "memoryless": table_of(capacity.Memoryless, kind="memoryless"),
        "pools": table_of(capacity.Pools, kind="pools"),
        "alive": AliveTrace,
        "skypilot": SkypilotTrace,
        "gcp": GcpProbe,
    },
)


# --- the file ------------------------------------------------------------------------------------

OF_THE_ZONE = {"name", "zone", "dollars_per_hour", "seconds_to_start", "joins_at_seconds", "lifetime"}
"""Settings of a machine that its zone and offer set."""


class ZoneTable(Maker):
    """A zone, with the settings of its machines."""

    makes = Machine
    name: str
    """Name of the zone. Its machines are NAME1, NAME2, ..."""
    offer: str
    """Name of an offer of this file."""
    count: column(AtLeastOne)  # type: ignore[valid-type]
    """Number of machines that are requested all the time."""
    capacity: CAPACITIES.hint | None = None  # type: ignore[name-defined]
    """Number of available machines over time. Default: all machines. Not with `on_demand`."""
    on_demand: bool = False
    """Whether machines are bought on demand. False: on the spot market."""
    seconds_per_sample: float
    """Mean computation time of one sample on a machine of speed 1, in seconds."""

    def make(self) -> Machine:
        """Return one of the machines, at speed 1."""
        return Machine(
            **{"name": "one", **{key: v for key, v in given(self, Machine).items() if key != "name"}}
        )

    def zone(self, offers: Mapping[str, Offer]) -> Zone:
        """Return the zone. Raise UsageError if its offer does not exist or is not sold in this way."""
        if self.offer not in offers:
            raise UnknownName("offer", self.offer, offers, key="offer")
        spot = not self.on_demand
        if self.on_demand and self.capacity is not None:
            message = "`capacity` has no effect on demand: leave it out, or set on_demand = false"
            raise UsageError(message, "capacity_on_demand", "capacity")
        has = {} if self.capacity is None else {"capacity": self.capacity.make()}
        return Zone(self.name, offers[self.offer], self.count, self.make(), spot=spot, **has)


_OF_MACHINES = {
    name: (column(hint, CHOICES), ... if name == "seconds_per_sample" else None)
    for name, hint in hints_of(Machine).items()
    if name not in OF_THE_ZONE
}
Machines: Any = list[MachineTable]  # type: ignore[valid-type]  # made above
Offers: Any = list[table_of(Offer, choices={Steps: PRICES})]  # type: ignore[misc]  # made here
Zones: Any = list[create_model("ZoneTable", __base__=ZoneTable, **_OF_MACHINES)]  # type: ignore[misc,call-overload]
HubTable = table_of(Hub)
BuyingTable: Any = table_of(Buying)
FleetFile: Any = create_model(
    "FleetFile",
    __base__=Table,
    machines=(Machines, []),
    offers=(Offers, []),
    zones=(Zones, []),
    hub=(HubTable, HubTable()),
    buying=(BuyingTable | None, None),
)


def read_fleet(path: str | Path) -> Fleet:
    """Return the fleet of a TOML file: its machines and zones in their order, the hub, and the buying policy.

    Raise UsageError, with file and line, if the file is not valid.
    """
    path = checked_path(path)
    text, file = read_table(path, FleetFile)

    def placed(table: str, index: int, error: UsageError) -> UsageError:
        return at_line(path, locate(text, (table, index, error.key)), error)

    names, found = set[str](), list[Machine | Zone]()
    for table, index, key, one in _spelled_out(file, placed):
        fresh = [one.name, *one.names] if isinstance(one, Zone) else [one.name]
        if file.buying and isinstance(one, Zone) and one.spot:
            fresh += [one.substitute.name, *one.substitute.names]
        for name in fresh:
            if name in names:
                of_zone = (
                    f" (a machine of the zone {one.name})"
                    if isinstance(one, Zone) and name != one.name
                    else ""
                )
                sentence = f"two machines or zones are named {name}{of_zone}: use distinct names"
                raise placed(table, index, UsageError(sentence, "name_twice", key, name=name))
            names.add(name)
        found.append(one)
    if not found:
        message = f"{path} has no machines: add a table [[machines]] with a name, or [[zones]] with an offer"
        raise UsageError(message, "no_machines", path=str(path))
    buying = file.buying.make() if file.buying else None
    try:
        return Fleet(found, file.hub.make(), buying)
    except UsageError as error:
        raise at_line(path, locate(text, ("buying",)), error) from None


def _spelled_out(
    file: Any, placed: Callable[[str, int, UsageError], UsageError]
) -> Iterator[tuple[str, int, str, Machine | Zone]]:
    """Yield every machine and zone, with its table, its index in the table and the key of its name.

    `placed` adds the location in the file to an error.
    """
    total = 0
    offers = dict[str, Offer]()
    for index, offer in enumerate(table.make() for table in file.offers):
        if offer.name in offers:
            message = f"two offers are named {offer.name}: use distinct names"
            raise placed("offers", index, UsageError(message, "name_twice", "name", name=offer.name))
        offers[offer.name] = offer
    for where, tables in (("machines", file.machines), ("zones", file.zones)):
        for index, table in enumerate(tables):
            total += table.count or 1
            if total > MAX_MACHINES:
                message = f"the fleet has more than {MAX_MACHINES:,} machines: use fewer"
                raise placed(where, index, UsageError(message, "too_many_machines", "count", machines=total))
            try:
                whole = [table.zone(offers)] if where == "zones" else _numbered(table.make(), table.count)
            except UsageError as error:
                raise placed(where, index, error) from None
            yield from ((where, index, "name", one) for one in whole)


def _numbered(one: Machine, count: int | None) -> list[Machine]:
    return [replace(one, name=f"{one.name}{i + 1}") for i in range(count)] if count else [one]
