"""The headline: time, bill and accuracy on demand and on spot machines that real traces preempt and price.

(i) one machine on demand, (ii) federated averaging on 8 machines on demand, (iii) VC-ASGD on spot machines, as many as
make 8 on average while they come and go as in four real traces, (iv) elastic averaging and Downpour likewise. All
machines have the same speed, and there is a hub at one price everywhere. What counts is the bill until a version is
there whose accuracy is (ii)'s final one less one point. The trainings do not depend on prices, so each is priced with
every trace, begun at moments all over it.
"""

import csv
import gzip
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from benchmarks.plots import save
from benchmarks.report import Size, show
from benchmarks.vc_asgd.setting import (
    SHARDS,
    a_job,
    accuracy_at,
    like,
    once_above,
    points,
    proved,
    reached,
)
from oddlot import (
    SGD,
    VCASGD,
    Downpour,
    ElasticAveraging,
    FederatedAveraging,
    Job,
    Run,
    Simulated,
    Strategy,
    Synchronous,
    fit,
)
from oddlot.history.metrics import tally_of
from oddlot.machines import Alive, Always, Offer, Steps, Zone
from oddlot.machines.capacity import Capacity
from oddlot.machines.market_traces import read_alive, read_aws_prices, read_azure_prices
from oddlot.report.svg_charts import Line

ON_DEMAND = {"p3.2xlarge": 3.06, "p3.8xlarge": 12.24, "p3.16xlarge": 24.48, "NC6": 0.90}
"""dollars an hour in 2020"""
HUB_DOLLARS_PER_HOUR = 0.096
"""of a machine with two cores and 8 GB, on demand, for everybody"""
MACHINES, SECONDS_TO_START, NOTICED_AFTER, DEADLINE = 8, 60.0, 300.0, 1800.0
COUNTS = (2, 4, MACHINES, 2 * MACHINES)
"""Machines that stay."""
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
RATE = 0.06
"""the learning rate: of 0.03, 0.06 and 0.1 the best one of federated averaging and of VC-ASGD alike, after 5 epochs"""
BEGINNINGS = 40
"""moments of a price trace at which the job is begun, evenly over it"""
DRAWN_HOURS = 6.0


@dataclass(frozen=True)
class Trained:
    """A run and the machine-time that it paid for, as spells in seconds of its clock."""

    run: Run
    spells: Sequence[tuple[float, float]]

    @classmethod
    def of(cls, run: Run) -> "Trained":
        """From the log: a machine is paid for from its order until it is gone."""
        bill = tally_of(run.records, 1).cost
        end = float(run.summary["seconds"])
        return cls(
            run,
            [(one.prices[0][0], end if one.ended is None else one.ended) for one in bill.accounts.values()],
        )

    def machine_seconds(self, until: float) -> float:
        """Paid for until then."""
        return sum(max(0.0, min(stop, until) - start) for start, stop in self.spells)

    def bill(self, until: float, prices: Steps, begin: float = 0.0) -> float:
        """Dollars until then, if the run began at this second of the price trace; the hub's are among them."""
        spells = [(begin + a, begin + min(b, until)) for a, b in self.spells if a < until]
        return sum(_paid(prices, a, b) for a, b in spells) + HUB_DOLLARS_PER_HOUR * until / 3600


def _paid(prices: Steps, start: float, stop: float) -> float:
    """For one machine."""
    total, at, price = 0.0, start, prices.at(start)
    for when, next_price in prices.changes(start):
        if when >= stop:
            break
        total, at, price = total + price * (when - at), when, next_price
    return (total + price * (stop - at)) / 3600


def data() -> Path:
    """Where the traces are. FileNotFoundError says what is missing."""
    root = Path(os.environ.get("ODDLOT_DATA", "nowhere"))
    for folder in ("spot_gpu_2020", "spot_bamboo_2020"):
        if not (root / folder).is_dir():
            raise FileNotFoundError(f"ODDLOT_DATA names no folder with {folder}")
    return root


def price_traces() -> Iterator[tuple[str, str, Steps]]:
    """(machine, zone, spot price) of every p3 trace there is."""
    path = data() / "spot_gpu_2020" / "aws_spot_prices_us.csv.gz"
    with gzip.open(path, "rt") as file:
        kinds = {(row["instance_type"], row["availability_zone"]) for row in csv.DictReader(file)}
    for machine, zone in sorted(kinds):
        if machine in ON_DEMAND:
            yield machine, zone, read_aws_prices(path, machine, zone)


def alive(name: str) -> tuple[Capacity, int]:
    """A real trace from its first machines on, and how many to ask for: so many that 8 are there on average."""
    file, unit = ALIVE[name]
    steps = read_alive(data() / "spot_bamboo_2020" / file, unit)
    first = next(second for second, count in zip(steps.seconds, steps.values, strict=True) if count)
    length = steps.seconds[-1] - first
    there, most = steps.window(first, length + 1.0), int(max(steps.values))
    share = mean(there.at(length * moment / 1000) for moment in range(1000)) / most
    return Alive(there, of=most), round(MACHINES / share)


def on_demand(machine: str) -> Steps:
    """A price that stays."""
    return Steps((0.0,), (ON_DEMAND[machine],))


def train(
    job: Job, strategy: Strategy, until: str, seed: int, capacity: Capacity, count: int, shards: int = 1
) -> Trained:
    """On machines of one speed that come and go; prices come afterwards."""
    offer = Offer("any", 1.0, Steps((0.0,), (1.0,)), seconds_to_start=SECONDS_TO_START)
    zone = Zone("m", offer, count, like(job, noticed_after_seconds=NOTICED_AFTER), capacity)
    on = Simulated([zone], seed=seed + 1)
    run = fit(job, strategy, on, until=until, shards=shards, seed=seed, evaluate_every="0.25 epochs")
    return Trained.of(proved(run, job))


def averaging() -> Strategy:
    """(ii)."""
    return FederatedAveraging(deadline_seconds=DEADLINE)


def vc_asgd() -> Strategy:
    """(iii)."""
    return VCASGD(newest=True, deadline_seconds=DEADLINE)


ONE, SYNC = "(i) one on demand", "(ii) federated averaging on demand"


def trained(job: Job, epochs: int, traces: Sequence[str], with_rivals: bool, seed: int) -> dict[str, Trained]:
    """Everything that is trained, by its name; rivals end once they are well where (ii) ended, less one point."""
    steps = max(1, len(job.train_data[0]) // SHARDS // job.batch_size)
    found = {
        ONE: train(job, Synchronous(), f"epochs>={epochs}", seed, Always(), 1),
        SYNC: train(job, averaging(), f"epochs>={epochs}", seed, Always(), MACHINES, SHARDS),
    }
    target = (found[SYNC].run.accuracy or 0.0) - 0.01
    for name in traces:
        found[f"(iii) VC-ASGD on spot, {name}"] = train(
            job, vc_asgd(), f"epochs>={1.5 * epochs}", seed, *alive(name), SHARDS
        )
    rivals: dict[str, Strategy] = {
        "elastic averaging": ElasticAveraging(steps, deadline_seconds=DEADLINE),
        "Downpour": Downpour(steps, SGD(lr=1 / MACHINES), deadline_seconds=DEADLINE),
    }
    for rival, strategy in rivals.items() if with_rivals else ():
        for name in traces:
            until = f"epochs>={1.5 * epochs} or accuracy>={target}"
            found[f"(iv) {rival} on spot, {name}"] = train(job, strategy, until, seed, *alive(name))
    return found


def savings(
    spot: Trained, until: float, demand: Trained, most: float, prices: Steps, machine: str
) -> list[float]:
    """1 - the bill on spot over that on demand, for beginnings all over the price trace."""
    paid = demand.bill(most, on_demand(machine))
    end = max(1.0, prices.seconds[-1] - until)
    begins = [end * number / BEGINNINGS for number in range(BEGINNINGS)]
    return [1 - spot.bill(until, prices, begin) / paid for begin in begins]


def measure(size: Size, seed: int) -> dict[str, float]:
    """The worst of all traces."""
    dataset, (epochs, traces) = "fashion_mnist", size.pick((1, 1), (3, 1), (12, len(ALIVE)))
    job = replace(a_job(dataset, size.pick(100, None, None)), optimizer=SGD(lr=RATE, momentum=0.9))
    found = trained(job, epochs, list(ALIVE)[:traces], size is not Size.QUICK, seed)
    sync = found[SYNC].run.accuracy or 0.0
    until = {name: reached(one.run, sync - 0.01) for name, one in found.items()}
    _tell(f"{dataset}, {epochs} epochs, machines of one speed", found, until, sync - 0.01)
    most = until[SYNC]
    assert most is not None, "(ii) ends above its own accuracy less one point"
    spots = {name: (one, until[name]) for name, one in found.items() if name.startswith("(iii)")}
    saved = _priced(spots, found[SYNC], most)
    if size is not Size.QUICK:
        _tell_sizes(job, epochs, sync - 0.01, size.pick((4,), COUNTS, COUNTS), seed)
        _draw(size, f"{dataset} on demand and on spot, the first {DRAWN_HOURS:g} hours", found)
    arrived = [at for _, at in spots.values() if at]
    worst = min(accuracy_at(one.run, epochs) for one, _ in spots.values())
    return {
        **saved,
        "time_over_on_demand": max(arrived) / most if len(arrived) == len(spots) else float("inf"),
        "accuracy_gap": 100 * (sync - worst),
    }


def _draw(size: Size, title: str, found: dict[str, Trained]) -> None:
    """Accuracy over time; of the rivals on the first trace."""
    first = next(iter(ALIVE))
    some = {
        name: points(one.run, "seconds", 1 / 3600)
        for name, one in found.items()
        if not name.startswith("(iv)") or name.endswith(first)
    }
    drawn = [
        Line(name, once_above([p for p in line if p[0] <= DRAWN_HOURS], size.pick(0.0, 0.0, 0.8)), n)
        for n, (name, line) in enumerate(some.items())
    ]
    save(size, "vc_asgd_bill", title, "hours", "accuracy", drawn, DRAWN_HOURS)


def _tell(title: str, found: dict[str, Trained], until: dict[str, float | None], target: float) -> None:
    """What each has taken, lost and paid: on demand, or at one zone's spot prices and at Azure's."""
    p3, nc6 = _spot_prices()
    rows = []
    for name, one in found.items():
        spot, at = "on spot" in name, until[name]
        cells = ["never", *[""] * 5]
        if at:
            hours = one.machine_seconds(at) / 3600
            dollars = [
                one.bill(at, prices if spot else on_demand(machine))
                for machine, prices in (("p3.2xlarge", p3), ("NC6", nc6))
            ]
            cells = [f"{at / 3600:.2f}", f"{at / (until[SYNC] or at):.2f}", f"{3600 * hours / at:.1f}"]
            cells += [f"{hours:.1f}", *(f"{paid:.2f}" for paid in dollars)]
        summary = one.run.summary
        lost = f"{summary['workers_lost']:,}", f"{summary['samples_wasted']:,}"
        rows.append([name, f"{one.run.accuracy:.4f}", *cells, *lost])
    columns = ["", "accuracy", f"hours to {target:.4f}", "over (ii)", "machines", "machine-hours"]
    columns += ["$ p3.2xlarge us-east-1c", "$ NC6", "machines lost", "samples wasted"]
    show(title, columns, rows)


def _tell_sizes(job: Job, epochs: int, target: float, counts: Sequence[int], seed: int) -> None:
    """What another number of machines would take that stay: the bill depends on it as much as on the strategy."""
    rows, until = [], f"epochs>={1.5 * epochs} or accuracy>={target}"
    for count in counts:
        cells = [f"{count}"]
        for strategy in (averaging(), vc_asgd()):
            one = train(job, strategy, until, seed, Always(), count, SHARDS)
            at = reached(one.run, target)
            cells += [f"{at / 3600:.2f}", f"{one.machine_seconds(at) / 3600:.1f}"] if at else ["never", ""]
        rows.append(cells)
    columns = ["machines", "hours, federated averaging", "machine-hours", "hours, VC-ASGD", "machine-hours"]
    show(f"machines that stay, to an accuracy of {target:.4f}", columns, rows)


def _spot_prices() -> tuple[Steps, Steps]:
    p3 = next(
        prices for machine, zone, prices in price_traces() if (machine, zone) == ("p3.2xlarge", "us-east-1c")
    )
    return p3, read_azure_prices(data() / "spot_gpu_2020" / "azure_us_east.csv", "NC6")


def _priced(spots: dict[str, tuple[Trained, float | None]], sync: Trained, most: float) -> dict[str, float]:
    """Savings by price trace: the mean over beginnings, of the worst preemption trace."""
    rows, means, sold = [], dict[str, float](), dict[str, float]()
    for machine, zone, prices in [*price_traces(), ("NC6", "us-east", _spot_prices()[1])]:
        each = [savings(one, at, sync, most, prices, machine) for one, at in spots.values() if at]
        if len(each) < len(spots):
            each.append([float("-inf")])
        worst, name = min(each, key=mean), f"{machine} {zone}"
        means[name] = mean(worst)
        spot = mean(prices.at(prices.seconds[-1] * n / 200) for n in range(200)) / ON_DEMAND[machine]
        if spot < 0.99:
            sold[name] = means[name]
        rows.append([machine, zone, f"{spot:.3f}", f"{mean(worst):.3f}", f"{min(map(min, each)):.3f}"])
    columns = ["machine", "zone", "spot over on demand", "saved, mean of beginnings", "worst of all"]
    show("saved, with the worst of the preemption traces", columns, rows)
    p3, sold = _of_p3(means), _of_p3(sold)
    print(
        f"the least saving on p3 where spot was sold for less than on demand: {min(sold.values()):.3f} "
        f"({len(sold)} of {len(p3)} traces)"
    )
    return {"bill_saving_p3_min": min(p3.values()), "bill_saving_nc6": means["NC6 us-east"]}


def _of_p3(found: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in found.items() if name.startswith("p3")}
