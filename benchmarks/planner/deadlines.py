"""The cost of a job with a deadline on recorded spot markets, by buying policy, without gradients."""

from dataclasses import dataclass, replace
from statistics import mean

import torch
from torch import nn

from benchmarks.report import NOT_REACHED, Measured, Size, show
from benchmarks.vc_asgd.market import Recorded, bamboo, gcp
from oddlot import SGD, Asynchronous, Job, Machine, Simulated, fit
from oddlot.machines import Buying, Offer, Steps, Zone
from oddlot.machines.buying import POLICIES, least_dollars

MACHINES, WORK_HOURS, DEADLINE_HOURS = 8, 8.0, 12.0
TASK_SECONDS = 120.0
ON_DEMAND, SPOT = 1.0, 0.35
"""Dollars per hour."""
SECONDS_TO_START = 300.0
BEGINNINGS = 10
"""Start times in each trace."""
TRACES = ("g4dn 1c", "g4dn 1d", "p2")
"""The traces of Bamboo with times without any machine."""
PROBE = "1 nvidia-tesla-v100 us-west1-b"
RECOMMENDED, BASELINE = "fill_in", "greedy"


def traces(trimmed: bool) -> dict[str, Recorded]:
    """Return the traces by name. `trimmed` traces start with their first machine."""
    found = {name: bamboo(name, whole=not trimmed) for name in TRACES}
    return found | {PROBE: next(one for name, one in gcp() if name == PROBE)}


def made_up() -> dict[str, Recorded]:
    """Return a trace for the smoke form: no machine for three of every six hours."""
    hours = [3600.0 * hour for hour in range(0, 24, 3)]
    return {"made up": Recorded(Steps((*hours, 24 * 3600.0), (*(8.0, 0.0) * 4, 8.0)), 8)}


@dataclass(frozen=True)
class Paid:
    """The time and cost of a run."""

    hours: float
    dollars: float


def zone(trace: Recorded, begin: float) -> Zone:
    """Return the spot zone with this trace, from second `begin` on."""
    offer = Offer("machine", ON_DEMAND, Steps((0.0,), (SPOT,)), seconds_to_start=SECONDS_TO_START)
    return Zone("spot", offer, MACHINES, Machine("one", TASK_SECONDS), trace.repeated(begin))


def paid(zone: Zone, policy: str) -> Paid:
    """Return time and cost of the job with a buying policy, or on demand if the policy is empty."""
    tasks = round(MACHINES * WORK_HOURS * 3600 / TASK_SECONDS)
    rows = torch.zeros(tasks, 1)
    job = Job(
        lambda: nn.Linear(1, 1),
        (rows, rows),
        loss=nn.functional.mse_loss,
        optimizer=SGD(lr=0.1),
        batch_size=1,
    )
    engine = Simulated([zone], computes=False, buying=Buying(DEADLINE_HOURS, policy) if policy else None)
    if not policy:
        engine = replace(engine, machines=[zone.on_demand()])
    run = fit(job, Asynchronous(), engine, until="epochs>=1", quiet=True)
    return Paid(run.hours, run.summary["dollars"])


def measured(markets: dict[str, Recorded], beginnings: int) -> tuple[dict[str, list[Paid]], list[float]]:
    """Return time and cost by policy, and the optimum, of all start times. Print a table."""
    found: dict[str, list[Paid]] = {policy: [] for policy in POLICIES}
    least, rows = list[float](), []
    for name, trace in markets.items():
        zones = [zone(trace, trace.seconds * number / beginnings) for number in range(beginnings)]
        here = {policy: [paid(one, policy) for one in zones] for policy in POLICIES}
        optimum = [least_dollars(one, MACHINES * WORK_HOURS, DEADLINE_HOURS) for one in zones]
        for policy, values in here.items():
            found[policy] += values
        least += optimum
        misses = [sum(one.hours > DEADLINE_HOURS for one in values) for values in here.values()]
        costs = [f"{mean(one.dollars for one in values):.2f}" for values in here.values()]
        rows.append(
            [
                name,
                f"{trace.availability:.2f}",
                *(f"{cost} ({miss})" for cost, miss in zip(costs, misses, strict=True)),
                f"{mean(optimum):.2f}",
            ]
        )
    show(
        f"dollars of {WORK_HOURS:g} h on demand with a deadline of {DEADLINE_HOURS:g} h (missed deadlines), mean of "
        f"{beginnings} start times",
        ["trace", "availability", *POLICIES, "optimum"],
        rows,
    )
    return found, least


def gap(found: dict[str, list[Paid]], least: list[float], policy: str) -> float:
    """Return the cost above the optimum, as a ratio to the baseline's."""
    above = {each: mean(one.dollars for one in found[each]) - mean(least) for each in (policy, BASELINE)}
    return above[policy] / above[BASELINE]


def figures(size: Size) -> dict[str, Measured]:
    """Measure, and return the figures. Without the traces, they are not measured."""
    try:
        markets = made_up() if size is Size.SMOKE else traces(trimmed=False)
        trimmed = made_up() if size is Size.SMOKE else traces(trimmed=True)
    except FileNotFoundError as error:
        print(f"deadlines: {error}, so they are left out")
        return {}
    beginnings = size.pick(2, BEGINNINGS, BEGINNINGS)
    found, least = measured(markets, beginnings)
    without, least_without = measured(trimmed, beginnings)
    on_demand = paid(zone(next(iter(markets.values())), 0.0), "").dollars
    ours = [*found[RECOMMENDED], *without[RECOMMENDED]]
    savings = {
        policy: 1 - mean(one.dollars for one in values) / on_demand for policy, values in found.items()
    }
    savings["optimum"] = 1 - mean(least) / on_demand
    show("saving against on demand", [*savings], [[f"{saving:.3f}" for saving in savings.values()]])
    return {
        "deadline_misses": float(sum(one.hours > DEADLINE_HOURS for one in ours)),
        "spot_saving": savings[RECOMMENDED],
        "gap_to_optimum_over_greedy": gap(found, least, RECOMMENDED),
        "gap_to_optimum_over_greedy_trimmed": gap(without, least_without, RECOMMENDED),
    }
