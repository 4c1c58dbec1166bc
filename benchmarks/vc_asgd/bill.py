"""The headline: time, bill and accuracy on demand and on spot machines that real traces preempt and price.

Every system trains the same job to the same accuracy: the final one of federated averaging on 8 machines on demand,
less one point. A system is a strategy on 8 or 4 machines, on demand or on spot. Spot machines come and go as in real
traces, and as many are requested as make 8 (or 4) on average. All machines have the same speed, and there is a hub at
one price everywhere. The trainings do not depend on prices, so each is priced with every trace: see `savings`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarks.plots import save
from benchmarks.report import Measured, Size, show
from benchmarks.vc_asgd import other_traces, savings
from benchmarks.vc_asgd.market import ALIVE, MACHINES, bamboo
from benchmarks.vc_asgd.savings import AVERAGING, BASE, COMPARED, DEFAULT, NEWEST, OURS, System, Trained
from benchmarks.vc_asgd.setting import (
    SHARDS,
    a_job,
    accuracy_at,
    once_above,
    points,
    proved,
    reached,
    zone,
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
from oddlot.machines import Always
from oddlot.machines.capacity import Capacity
from oddlot.report.svg_charts import Line

DEADLINE = 1800.0
COUNTS = (2, 4, MACHINES, 2 * MACHINES)
"""Machines that stay."""
RATE = 0.06
"""the learning rate: of 0.03, 0.06 and 0.1 the best one of federated averaging and of VC-ASGD alike, after 5 epochs"""
DRAWN_HOURS = 6.0
LIMIT = 5
"""A system that needs more than this many times the epochs of federated averaging has missed the accuracy."""
ONE, ELASTIC, DOWNPOUR = "one machine", "elastic averaging", "Downpour"
WHOLE = {ONE, ELASTIC, DOWNPOUR}
"""Strategies without shards."""


def strategies(job: Job) -> dict[str, Callable[[], Strategy]]:
    """Return a maker of each strategy by name."""
    steps = max(1, len(job.train_data[0]) // SHARDS // job.batch_size)
    return {
        ONE: Synchronous,
        AVERAGING: lambda: FederatedAveraging(deadline_seconds=DEADLINE),
        DEFAULT: lambda: VCASGD(deadline_seconds=DEADLINE),
        NEWEST: lambda: VCASGD(newest=True, deadline_seconds=DEADLINE),
        ELASTIC: lambda: ElasticAveraging(steps, deadline_seconds=DEADLINE),
        DOWNPOUR: lambda: Downpour(steps, SGD(lr=1 / MACHINES), deadline_seconds=DEADLINE),
    }


def systems(size: Size) -> list[System]:
    """Return those of the keys; in other than quick runs also systems for comparison."""
    found = [system for pair in COMPARED.values() for system in pair]
    if size is not Size.QUICK:
        found += [System(DEFAULT, MACHINES, False), System(NEWEST, 4, False), System(NEWEST, 4, True)]
        found += [System(ONE, 1, False), System(ELASTIC, MACHINES, True), System(DOWNPOUR, MACHINES, True)]
    return sorted(set(found), key=lambda one: (one.strategy not in (AVERAGING, DEFAULT, NEWEST), *one))


def train(job: Job, strategy: str, until: str, seed: int, capacity: Capacity, count: int) -> Run:
    """Train on machines of one speed that come and go; prices come afterwards."""
    on = Simulated([zone(job, count, capacity)], seed=seed + 1)
    made, shards = strategies(job)[strategy](), 1 if strategy in WHOLE else SHARDS
    run = fit(job, made, on, until=until, shards=shards, seed=seed, evaluate_every="0.25 epochs")
    return proved(run, job)


def trained(
    job: Job, epochs: int, traces: Sequence[str], asked: Sequence[System], seed: int
) -> tuple[dict[System, dict[str, Trained]], float]:
    """Return all trainings and the accuracy to reach. All but ours and the base end as soon as they have reached it."""
    sync = train(job, AVERAGING, f"epochs>={epochs}", seed, Always(), MACHINES)
    target = (sync.accuracy or 0.0) - 0.01
    found = {BASE: {"": Trained.of(sync, target)}}
    for system in asked:
        until = f"epochs>={LIMIT * epochs} or accuracy>={target}"
        if system == OURS:
            until = f"epochs>={1.25 * epochs}"
        if system.on_spot:
            there = {name: bamboo(name) for name in traces}
            places = {name: (one.repeated(), one.requested(system.machines)) for name, one in there.items()}
        else:
            places = {"": (Always(), system.machines)}
        if system != BASE:
            found[system] = {
                name: Trained.of(train(job, system.strategy, until, seed, *place), target)
                for name, place in places.items()
            }
    return found, target


def measure(size: Size, seed: int) -> dict[str, Measured]:
    """Return the savings in all markets, and times and accuracy on the worst trace."""
    dataset, (epochs, traces) = "fashion_mnist", size.pick((1, 1), (3, 1), (12, len(ALIVE)))
    job = replace(a_job(dataset, size.pick(100, None, None)), optimizer=SGD(lr=RATE, momentum=0.9))
    found, target = trained(job, epochs, list(ALIVE)[:traces], systems(size), seed)
    title = f"{dataset}, {epochs} epochs, machines of one speed, to an accuracy of {target:.4f}"
    saved = savings.measure(found, title)
    most = found[BASE][""].until
    assert most is not None, "federated averaging ends above its own accuracy less one point"
    if size is not Size.QUICK:
        _tell_sizes(job, epochs, target, size.pick((4,), COUNTS, COUNTS), seed)
        _draw(size, f"{dataset} on demand and on spot, the first {DRAWN_HOURS:g} hours", found)
    stays = found[System(NEWEST, MACHINES, False)][""].run
    needed = reached(stays, target, "epochs")
    elsewhere = other_traces.measure(size, seed, needed, most, DEADLINE) if needed else {}
    spots = list(found[OURS].values())
    arrived = [one.until for one in spots if one.until is not None]
    worst = min(accuracy_at(one.run, epochs) for one in spots)
    return {
        **saved,
        **elsewhere,
        "time_over_on_demand": max(arrived) / most if len(arrived) == len(spots) else None,
        "accuracy_gap": 100 * (target + 0.01 - worst),
    }


def _draw(size: Size, title: str, found: Mapping[System, Mapping[str, Trained]]) -> None:
    """Plot accuracy over time; of the systems on spot but ours on the first trace."""
    first = next(iter(ALIVE))
    some = {
        f"{system}, {trace}" if trace else f"{system}": points(one.run, "seconds", 1 / 3600)
        for system, runs in found.items()
        for trace, one in runs.items()
        if system in (OURS, BASE) or (system.strategy in WHOLE and trace in ("", first))
    }
    drawn = [
        Line(name, once_above([p for p in line if p[0] <= DRAWN_HOURS], size.pick(0.0, 0.0, 0.8)), n)
        for n, (name, line) in enumerate(some.items())
    ]
    save(size, "vc_asgd_bill", title, "hours", "accuracy", drawn, DRAWN_HOURS)


def _tell_sizes(job: Job, epochs: int, target: float, counts: Sequence[int], seed: int) -> None:
    """Print what another number of machines takes: the bill depends on it as much as on the strategy."""
    rows, until = [], f"epochs>={1.5 * epochs} or accuracy>={target}"
    for count in counts:
        cells = [f"{count}"]
        for strategy in (AVERAGING, NEWEST):
            one = Trained.of(train(job, strategy, until, seed, Always(), count), target)
            cells += [f"{one.until / 3600:.2f}", f"{one.machine_hours():.1f}"] if one.until else ["never", ""]
        rows.append(cells)
    columns = ["machines", "hours, federated averaging", "machine-hours", "hours, VC-ASGD", "machine-hours"]
    show(f"machines that stay, to an accuracy of {target:.4f}", columns, rows)
