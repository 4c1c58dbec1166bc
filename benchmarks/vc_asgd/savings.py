"""Bills of all systems, to the same accuracy, in every market.

A market is a recorded price and a recorded number of available machines. The bill of a system on spot is the mean over
start times all over the price trace. On demand, it depends only on the price list.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean

from benchmarks.report import NOT_REACHED, Measured, median_and_range, show
from benchmarks.vc_asgd.market import MACHINES, ON_DEMAND, on_demand, price_traces
from benchmarks.vc_asgd.setting import reached
from benchmarks.vc_asgd.systems import AVERAGING, NEWEST, PAPER, System
from oddlot import Run
from oddlot.history.metrics import tally_of
from oddlot.machines import Steps

HUB_DOLLARS_PER_HOUR = 0.096
"""Price of a hub with two cores and 8 GB on demand, for every system."""
BEGINNINGS = 40
"""Number of start times, evenly spread over a price trace."""
SHOWN = {"p3.2xlarge us-east-1c", "NC6 us-east"}
"""Prices in columns of the table."""


OURS, BASE = System(NEWEST, MACHINES, True), System(AVERAGING, MACHINES, False)
COMPARED = {
    "saving_default_mode": (System(PAPER, MACHINES, True), BASE),
    "saving_newest": (OURS, BASE),
    "saving_over_fedavg_4": (OURS, System(AVERAGING, 4, False)),
    "saving_over_fedavg_spot": (OURS, System(AVERAGING, MACHINES, True)),
    "saving_over_fedavg_4_spot": (OURS, System(AVERAGING, 4, True)),
    "saving_same_system_on_demand": (OURS, System(NEWEST, MACHINES, False)),
}
"""Two systems by key. The bill of the first is divided by the bill of the second."""


@dataclass(frozen=True)
class Trained:
    """A run and its paid machine-time, as intervals in seconds of its clock."""

    run: Run
    spells: Sequence[tuple[float, float]]
    until: float | None
    """Seconds to the required accuracy, or None if it was not reached."""

    @classmethod
    def of(cls, run: Run, accuracy: float) -> "Trained":
        """Read the log. A machine is paid for from its order to its end."""
        bill = tally_of(run.records, 1).cost
        end = float(run.summary["seconds"])
        spells = [
            (one.prices[0][0], end if one.ended is None else one.ended) for one in bill.accounts.values()
        ]
        return cls(run, spells, reached(run, accuracy))

    def machine_hours(self) -> float:
        """Return the paid machine-hours until the accuracy was reached."""
        assert self.until is not None, "the accuracy was not reached"
        return sum(max(0.0, min(stop, self.until) - start) for start, stop in self.spells) / 3600

    def bill(self, prices: Steps, begin: float = 0.0) -> float:
        """Return the dollars of machines and hub, if the run starts at second `begin` of the price trace."""
        assert self.until is not None, "the accuracy was not reached"
        spells = [(begin + a, begin + min(b, self.until)) for a, b in self.spells if a < self.until]
        return sum(_paid(prices, a, b) for a, b in spells) + HUB_DOLLARS_PER_HOUR * self.until / 3600


Trainings = Mapping[System, Mapping[str, Trained]]
"""Trainings by system and capacity trace. On demand, there is one training, with the key ""."""


def _paid(prices: Steps, start: float, stop: float) -> float:
    """Return the dollars for one machine."""
    total, at, price = 0.0, start, prices.at(start)
    for when, next_price in prices.changes(start):
        if when >= stop:
            break
        total, at, price = total + price * (when - at), when, next_price
    return (total + price * (stop - at)) / 3600


class Bills:
    """Mean bills of all systems, by market."""

    def __init__(self, trained: Trainings) -> None:
        """Price all trainings that reached the accuracy."""
        self.prices = {f"{machine} {zone}": steps for machine, zone, steps in price_traces()}
        self.capacities = list(trained[OURS])
        self.by_market = {system: dict(self._of(system, runs)) for system, runs in trained.items()}

    def _of(self, system: System, runs: Mapping[str, Trained]) -> Iterator[tuple[tuple[str, str], float]]:
        """Yield (price, capacity) and the mean bill."""
        for price, capacity in product(self.prices, self.capacities):
            if (one := runs[capacity if system.on_spot else ""]).until is None:
                continue
            machine, prices = price.split()[0], self.prices[price]
            end = max(1.0, prices.seconds[-1] - one.until)
            begins = [end * number / BEGINNINGS for number in range(BEGINNINGS)]
            bills = (
                [one.bill(prices, at) for at in begins] if system.on_spot else [one.bill(on_demand(machine))]
            )
            yield (price, capacity), mean(bills)

    def savings(self, system: System, other: System) -> dict[tuple[str, str], float]:
        """Return 1 - bill / other system's bill, by market, or `-NOT_REACHED` if a system missed the accuracy."""
        ours, theirs = self.by_market[system], self.by_market[other]
        return {
            market: 1 - ours[market] / theirs[market] if market in ours and market in theirs else -NOT_REACHED
            for market in product(self.prices, self.capacities)
        }


def measure(trained: Trainings, title: str) -> dict[str, Measured]:
    """Print both tables, and return the figures: values of all markets."""
    bills = Bills(trained)
    _tell(bills, trained, title)
    _tell_prices(bills)
    figures = {key: list(bills.savings(*pair).values()) for key, pair in COMPARED.items()}
    ours = bills.savings(OURS, BASE)
    return {
        **figures,
        "saving_newest_best_market": max(ours.values()),
        "bill_saving_p3_min": min(value for (name, _), value in ours.items() if name.startswith("p3")),
        "bill_saving_nc6": min(value for (name, _), value in ours.items() if name.startswith("NC6")),
    }


def _tell(bills: Bills, trained: Trainings, title: str) -> None:
    """Print time, losses, bills and savings of each system, with the range of the capacity traces."""
    rows, most = [], trained[BASE][""].until or 1.0
    for system, runs in trained.items():
        done = [one for one in runs.values() if one.until is not None]
        cells = ["never"] + [""] * 4
        if len(done) == len(runs):
            hours = [one.until / 3600 for one in done if one.until is not None]
            saved = list(bills.savings(system, BASE).values())
            cells = [median_and_range(hours, 2), median_and_range([3600 * one / most for one in hours], 2)]
            cells += [median_and_range([one.machine_hours() for one in done], 1)]
            cells += [
                f"{min(some):.2f} to {max(some):.2f}"
                for price in sorted(SHOWN & bills.prices.keys())
                if (some := [v for (name, _), v in bills.by_market[system].items() if name == price])
            ]
            cells += [median_and_range(saved), f"{max(saved):.3f}"] if saved else []
        lost = [one.run.summary["workers_lost"] for one in runs.values()]
        accuracy = [one.run.accuracy or 0.0 for one in runs.values()]
        rows.append([f"{system}", median_and_range(accuracy), f"{min(lost)} to {max(lost)}", *cells])
    columns = [
        "",
        "accuracy at the end",
        "machines lost",
        "hours",
        "over federated averaging",
        "machine-hours",
    ]
    columns += [f"$ {price}" for price in sorted(SHOWN & bills.prices.keys())]
    show(title, [*columns, "saved, all markets", "best market"], rows)


def _tell_prices(bills: Bills) -> None:
    """Print the savings of `OURS` by price trace, with the worst capacity trace."""
    rows, saved = [], bills.savings(OURS, BASE)
    for price, steps in bills.prices.items():
        discount = (
            mean(steps.at(steps.seconds[-1] * n / 200) for n in range(200)) / ON_DEMAND[price.split()[0]]
        )
        worst = min(value for (name, _), value in saved.items() if name == price)
        rows.append([price, f"{discount:.3f}", f"{worst:.3f}"])
    show(f"saved by {OURS}, with the worst capacity", ["price", "spot over on demand", "saved"], rows)
