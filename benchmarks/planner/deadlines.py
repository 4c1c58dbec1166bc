"""The cost of a job with a deadline on recorded spot markets, by buying policy, without gradients."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from benchmarks.report import Measured, Size, show
from benchmarks.vc_asgd.market import Recorded, bamboo, gcp
from oddlot import Asynchronous, Machine, Simulated, fit
from oddlot.machines import Buying, Offer, Steps, Zone
from oddlot.machines.buying import POLICIES
from oddlot.machines.least_cost import least_dollars
from oddlot.planner.run_shape import RunShape

MACHINES, WORK_HOURS, DEADLINE_HOURS = 8, 8.0, 12.0
TASK_SECONDS = 180.0
ON_DEMAND, SPOT = 1.0, 0.35
"""Dollars per hour."""
SECONDS_TO_START = 300.0
BEGINNINGS = 10
"""Start times in each trace."""
TRACES = ("g4dn 1c", "g4dn 1d", "p2")
"""The traces of Bamboo with times without any machine."""
PROBE = "1 nvidia-tesla-v100 us-west1-b"
RECOMMENDED, BASELINE = "fill_in", "greedy"
FIGURES = (
    "deadline_misses",
    "spot_saving",
    "gap_to_optimum_over_greedy",
    "gap_to_optimum_over_greedy_trimmed",
)


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
    engine = Simulated([zone], computes=False, buying=Buying(DEADLINE_HOURS, policy) if policy else None)
    if not policy:
        engine = replace(engine, machines=[zone.on_demand()])
    run = fit(RunShape(samples=tasks).job(), Asynchronous(), engine, until="epochs>=1", quiet=True)
    return Paid(run.hours, run.summary["dollars"])


@dataclass(frozen=True)
class Outcome:
    """The runs by policy, and the lower bound of the cost, for the start times of some traces."""

    runs: dict[str, list[Paid]]
    least: list[float]

    def mean_cost(self, policy: str = "") -> float:
        """Return the mean cost of a policy, or the optimum's."""
        return mean(one.dollars for one in self.runs[policy]) if policy else mean(self.least)

    def gap(self, policy: str) -> float:
        """Return the cost above the optimum, as a ratio to the baseline's."""
        return (self.mean_cost(policy) - self.mean_cost()) / (self.mean_cost(BASELINE) - self.mean_cost())

    def misses(self, policy: str) -> int:
        """Return the number of runs that missed the deadline."""
        return sum(one.hours > DEADLINE_HOURS for one in self.runs[policy])


def measured(trace: Recorded, beginnings: int) -> Outcome:
    """Return the outcome of all policies for the start times of a trace."""
    zones = [zone(trace, trace.seconds * number / beginnings) for number in range(beginnings)]
    runs = {policy: [paid(one, policy) for one in zones] for policy in POLICIES}
    return Outcome(runs, [least_dollars(one, MACHINES * WORK_HOURS, DEADLINE_HOURS) for one in zones])


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcome of several traces."""
    runs = {policy: [run for one in outcomes for run in one.runs[policy]] for policy in POLICIES}
    return Outcome(runs, [dollars for one in outcomes for dollars in one.least])


def figures(size: Size) -> dict[str, Measured]:
    """Measure, print a table and return the figures. Without the traces, they are not measured."""
    try:
        markets = {"": made_up()} if size is Size.SMOKE else {"": traces(False), ", trimmed": traces(True)}
    except FileNotFoundError as error:
        print(f"deadlines are left out: {error}")
        return dict.fromkeys(FIGURES)
    known, found, rows = dict[Recorded, Outcome](), dict[str, Outcome](), []
    for suffix, here in markets.items():
        for trace in here.values():
            known[trace] = known.get(trace) or measured(trace, size.pick(2, BEGINNINGS, BEGINNINGS))
        rows += [_row(f"{name}{suffix}", known[trace], trace) for name, trace in here.items()]
        found[suffix] = joined([known[trace] for trace in here.values()])
        rows.append(_row(f"all{suffix}", found[suffix]))
    show(
        f"dollars of {WORK_HOURS:g} h on demand with a deadline of {DEADLINE_HOURS:g} h (missed deadlines)",
        ["trace", "availability", *POLICIES, "optimum"],
        rows,
    )
    whole, trimmed = found[""], found.get(", trimmed", found[""])
    on_demand = paid(zone(next(iter(markets[""].values())), 0.0), "").dollars
    savings = [1 - whole.mean_cost(policy) / on_demand for policy in (*POLICIES, "")]
    gaps = [[f"{one.gap(policy):.2f}" for policy in POLICIES] for one in (whole, trimmed)]
    show(
        f"against on demand ({on_demand:.2f} dollars), and the cost above the optimum / greedy's",
        ["", *POLICIES, "optimum"],
        [
            ["saving", *(f"{one:.3f}" for one in savings)],
            ["gap", *gaps[0], "0"],
            ["gap, trimmed", *gaps[1], "0"],
        ],
    )
    values = (
        float(whole.misses(RECOMMENDED) + trimmed.misses(RECOMMENDED)),
        savings[[*POLICIES].index(RECOMMENDED)],
        whole.gap(RECOMMENDED),
        trimmed.gap(RECOMMENDED),
    )
    return dict(zip(FIGURES, values, strict=True))


def _row(name: str, outcome: Outcome, trace: Recorded | None = None) -> list[str]:
    return [
        name,
        f"{trace.availability:.2f}" if trace else "",
        *(f"{outcome.mean_cost(policy):.2f} ({outcome.misses(policy)})" for policy in POLICIES),
        f"{outcome.mean_cost():.2f}",
    ]
