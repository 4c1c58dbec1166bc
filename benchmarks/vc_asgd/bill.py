"""The headline: time, bill and accuracy on demand and on spot machines that real traces preempt and price.

(i) one machine on demand, (ii) federated averaging on 8 machines on demand, (iii) VC-ASGD on as many spot machines as
four real traces had, (iv) elastic averaging and Downpour likewise. All machines have the same speed. What counts is the
bill until a version is there whose accuracy is (ii)'s final one less one point. The trainings do not depend on prices,
so each is priced with every trace, begun at moments all over it.
"""

import csv
import gzip
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from benchmarks.plots import save
from benchmarks.report import show
from benchmarks.vc_asgd.setting import PLOTS, SHARDS, a_job, accuracy_at, like, points, proved, reached
from oddlot import (
    SGD,
    VCASGD,
    Alive,
    Always,
    Downpour,
    ElasticAveraging,
    FederatedAveraging,
    Job,
    Offer,
    Run,
    Simulated,
    Steps,
    Strategy,
    Synchronous,
    Zone,
    fit,
)
from oddlot.machines.capacity import Capacity
from oddlot.machines.traces import read_alive, read_aws_prices, read_azure_prices
from oddlot.observe import tally_of
from oddlot.report.charts import Line

ON_DEMAND = {"p3.2xlarge": 3.06, "p3.8xlarge": 12.24, "p3.16xlarge": 24.48, "NC6": 0.90}
"""dollars an hour in 2020"""
MACHINES, SECONDS_TO_START, NOTICED_AFTER = 8, 60.0, 60.0
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


@dataclass(frozen=True)
class Trained:
    """A run and the machine-time that it paid for, as spells in seconds of its clock."""

    run: Run
    spells: Sequence[tuple[float, float]]

    @classmethod
    def of(cls, run: Run) -> "Trained":
        """From the log: a machine is paid for from its order until it is gone."""
        bill = tally_of(run.records, 1).bill
        end = float(run.summary["seconds"])
        return cls(
            run,
            [(one.prices[0][0], end if one.ended is None else one.ended) for one in bill.accounts.values()],
        )

    def machine_seconds(self, until: float) -> float:
        """Paid for until then."""
        return sum(max(0.0, min(stop, until) - start) for start, stop in self.spells)

    def bill(self, until: float, prices: Steps, begin: float) -> float:
        """Dollars until then, if the run began at this second of the price trace."""
        spells = [(begin + a, begin + min(b, until)) for a, b in self.spells if a < until]
        return sum(_paid(prices, a, b) for a, b in spells)


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
    """A real trace from its first machines on, and the most machines that it had."""
    file, unit = ALIVE[name]
    steps = read_alive(data() / "spot_bamboo_2020" / file, unit)
    first = next(second for second, count in zip(steps.seconds, steps.values, strict=True) if count)
    last = steps.seconds[-1] - first
    return Alive(steps.window(first, last + 1.0)), int(max(steps.values))


def train(
    job: Job, strategy: Strategy, epochs: int, capacity: Capacity, count: int, shards: int = 1
) -> Trained:
    """On machines of one speed that come and go; prices come afterwards."""
    offer = Offer("any", 1.0, Steps((0.0,), (1.0,)), seconds_to_start=SECONDS_TO_START)
    zone = Zone("m", offer, count, like(job, noticed_after_seconds=NOTICED_AFTER), capacity)
    run = fit(
        job,
        strategy,
        Simulated([zone], seed=1),
        until=f"epochs>={epochs}",
        shards=shards,
        evaluate_every="0.25 epochs",
    )
    return Trained.of(proved(run, job))


def trained(job: Job, epochs: int, traces: Sequence[str]) -> dict[str, Trained]:
    """Everything that is trained, by its name."""
    steps = max(1, len(job.data[0]) // SHARDS // job.batch)
    one, sync = "(i) one on demand", "(ii) federated averaging on demand"
    found = {
        one: train(job, Synchronous(), epochs, Always(), 1),
        sync: train(job, FederatedAveraging(), epochs, Always(), MACHINES, SHARDS),
    }
    for name in traces:
        ours = VCASGD(newest=True, deadline_seconds=1800)
        found[f"(iii) VC-ASGD on spot, {name}"] = train(job, ours, 2 * epochs, *alive(name), SHARDS)
    rivals: dict[str, Strategy] = {
        "elastic averaging": ElasticAveraging(steps=steps),
        "Downpour": Downpour(steps=steps, server=SGD(lr=1 / MACHINES)),
    }
    for rival, strategy in rivals.items() if len(traces) > 1 else ():
        found[f"(iv) {rival} on spot, {traces[0]}"] = train(job, strategy, 2 * epochs, *alive(traces[0]))
    return found


def savings(
    spot: Trained, until: float, demand: Trained, most: float, prices: Steps, price: float
) -> list[float]:
    """1 - the bill on spot over that on demand, for beginnings all over the price trace."""
    paid = demand.machine_seconds(most) * price / 3600
    end = max(1.0, prices.seconds[-1] - until)
    begins = [end * number / BEGINNINGS for number in range(BEGINNINGS)]
    return [1 - spot.bill(until, prices, begin) / paid for begin in begins]


def measure(quick: bool) -> dict[str, float]:
    """The worst of all traces."""
    dataset, epochs = "fashion_mnist", 3 if quick else 12
    job = replace(a_job(dataset), optimizer=SGD(lr=RATE, momentum=0.9))
    found = trained(job, epochs, list(ALIVE)[: 1 if quick else None])
    sync = found["(ii) federated averaging on demand"]
    target = (sync.run.accuracy or 0.0) - 0.01
    until = {name: reached(one.run, target) for name, one in found.items()}
    most = until["(ii) federated averaging on demand"] or 0.0
    rows = []
    for name, one in found.items():
        at = until[name]
        spent = one.machine_seconds(at) / 3600 if at else 0.0
        hours = [f"{at / 3600:.2f}", f"{spent:.1f}", f"{at / most:.2f}"] if at else ["never", "", ""]
        lost = f"{one.run.summary['workers_lost']:,}"
        rows.append([name, f"{one.run.accuracy:.4f}", *hours, lost])
    columns = ["", "accuracy", f"hours to {target:.4f}", "machine-hours", "time over (ii)", "machines lost"]
    show(f"{dataset}, {epochs} epochs, machines of one speed", columns, rows)
    spots = {name: (one, until[name]) for name, one in found.items() if name.startswith("(iii)")}
    saved = _priced(spots, sync, most)
    if not quick:
        drawn = [
            Line(name, points(one.run, "seconds", 1 / 3600), n) for n, (name, one) in enumerate(found.items())
        ]
        save(PLOTS / "vc_asgd_bill.svg", f"{dataset} on demand and on spot", "hours", "accuracy", drawn)
    arrived = [at for _, at in spots.values() if at]
    worst = min(accuracy_at(one.run, epochs) for one, _ in spots.values())
    return {
        **saved,
        "time_over_on_demand": max(arrived) / most if len(arrived) == len(spots) else float("inf"),
        "accuracy_gap": 100 * ((sync.run.accuracy or 0.0) - worst),
    }


def _priced(spots: dict[str, tuple[Trained, float | None]], sync: Trained, most: float) -> dict[str, float]:
    """Savings by price trace: the mean over beginnings, of the worst preemption trace."""
    rows, means = [], dict[str, float]()
    nc6 = read_azure_prices(data() / "spot_gpu_2020" / "azure_us_east.csv", "NC6")
    for machine, zone, prices in [*price_traces(), ("NC6", "us-east", nc6)]:
        price = ON_DEMAND[machine]
        each = [savings(one, at, sync, most, prices, price) for one, at in spots.values() if at]
        if len(each) < len(spots):
            each.append([float("-inf")])
        worst = min(each, key=mean)
        means[f"{machine} {zone}"] = mean(worst)
        spot = mean(prices.at(prices.seconds[-1] * n / 200) for n in range(200)) / price
        rows.append([machine, zone, f"{spot:.3f}", f"{mean(worst):.3f}", f"{min(map(min, each)):.3f}"])
    columns = ["machine", "zone", "spot over on demand", "saved, mean of beginnings", "worst of all"]
    show("saved, with the worst of the preemption traces", columns, rows)
    p3 = {name: value for name, value in means.items() if name.startswith("p3")}
    cheaper = [
        means[f"{row[0]} {row[1]}"] for row in rows if row[0].startswith("p3") and float(row[2]) < 0.99
    ]
    told = f"{min(cheaper):.3f} ({len(cheaper)} of {len(p3)} traces)"
    print(f"the least saving on p3 where the spot price was below that on demand: {told}")
    return {"bill_saving_p3_min": min(p3.values()), "bill_saving_nc6": means["NC6 us-east"]}
