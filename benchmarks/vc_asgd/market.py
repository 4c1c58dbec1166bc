"""Recorded markets: prices and numbers of available machines."""

import csv
import gzip
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from oddlot.machines import Alive, Steps
from oddlot.machines.capacity import Capacity
from oddlot.machines.market_traces import (
    CREATED,
    read_alive,
    read_aws_prices,
    read_azure_prices,
    read_gcp_probe,
)

ON_DEMAND = {"p3.2xlarge": 3.06, "p3.8xlarge": 12.24, "p3.16xlarge": 24.48, "NC6": 0.90}
"""Dollars per hour in 2020."""
MACHINES = 8
"""Machines on demand, and the mean number of machines on spot."""
ALIVE = {
    "g4dn 1c": (
        "aws-spot-instances-g4dn-xlarge-us-east-1c-2020-11-20-1930-to-2020-11-21-2200.csv",
        "seconds",
    ),
    "g4dn 1d": (
        "aws-spot-instances-g4dn-xlarge-us-east-1d-2020-11-23-1730-to-2020-11-24-1530.csv",
        "seconds",
    ),
    "p2": ("aws-spot-instances-p2-xlarge-2020-11-20-to-2020-11-23.csv", "hours"),
    "p2 1e": ("aws-spot-instances-p2-xlarge-us-east-1e-2020-11-23-1700-to-2020-11-24-0700.csv", "seconds"),
}


class Recorded(NamedTuple):
    """Available machines over time."""

    steps: Steps
    most: int
    """Number of machines that were requested."""

    @property
    def seconds(self) -> float:
        """Return the length of the trace."""
        return self.steps.seconds[-1]

    @property
    def availability(self) -> float:
        """Return the mean available share of the requested machines."""
        return mean(self.steps.at(self.seconds * moment / 1000) for moment in range(1000)) / self.most

    @property
    def longest_gap(self) -> float:
        """Return the longest time without a machine, in seconds."""
        starts = zip(self.steps.seconds, self.steps.seconds[1:], self.steps.values, strict=False)
        return max((stop - start for start, stop, count in starts if not count), default=0.0)

    def requested(self, machines: int) -> int:
        """Return the number of machines to request for a mean of `machines`. This needs the complete trace."""
        return round(machines / self.availability)

    def repeated(self, begin: float = 0.0) -> Capacity:
        """Return the trace from second `begin` on. It repeats."""
        return Alive(self.steps.window(0.0, self.seconds).window(begin, self.seconds), of=self.most)


def data() -> Path:
    """Return the folder of the traces. Raises FileNotFoundError if a folder is missing."""
    root = Path(os.environ.get("ODDLOT_DATA", "nowhere"))
    for folder in ("spot_gpu_2020", "spot_bamboo_2020"):
        if not (root / folder).is_dir():
            raise FileNotFoundError(f"ODDLOT_DATA names no folder with {folder}")
    return root


def bamboo(name: str, whole: bool = False) -> Recorded:
    """Return a trace of `ALIVE`. Without `whole`, it starts with its first machine."""
    file, unit = ALIVE[name]
    steps = read_alive(data() / "spot_bamboo_2020" / file, unit)
    counts = zip(steps.seconds, steps.values, strict=True)
    first = 0.0 if whole else next(second for second, count in counts if count)
    there = steps.window(first, steps.seconds[-1] - first + 1.0)
    return Recorded(Steps(there.seconds, there.values), int(max(steps.values)))


def gcp() -> Iterator[tuple[str, Recorded]]:
    """Yield the name and trace of every probe of a preemptible instance."""
    for path in sorted((data() / "spot_gpu_2020").glob("gcp_*.out.gz")):
        with gzip.open(path, "rt") as file:
            kinds = {match.groups()[1:] for match in map(CREATED.search, file) if match}
        for gpus, gpu, zone in sorted(kinds):
            yield f"{gpus} {gpu} {zone}", Recorded(read_gcp_probe(path, gpu, zone, int(gpus)), 1)


def price_traces() -> Iterator[tuple[str, str, Steps]]:
    """Yield machine, zone and spot price of every p3 trace and of Azure's NC6."""
    folder = data() / "spot_gpu_2020"
    with gzip.open(path := folder / "aws_spot_prices_us.csv.gz", "rt") as file:
        kinds = {(row["instance_type"], row["availability_zone"]) for row in csv.DictReader(file)}
    for machine, zone in sorted(kinds):
        if machine in ON_DEMAND:
            yield machine, zone, read_aws_prices(path, machine, zone)
    yield "NC6", "us-east", read_azure_prices(folder / "azure_us_east.csv", "NC6")


@cache
def on_demand(machine: str) -> Steps:
    """Return a constant price."""
    return Steps((0.0,), (ON_DEMAND[machine],))
