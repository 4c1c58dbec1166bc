"""Time, bill and accuracy on demand and on spot machines, with recorded preemptions and prices.

Every system trains the same job to the same accuracy: the final accuracy of federated averaging on 8 machines on
demand, less one point. A system is a strategy on 8 or 4 machines, on demand or on spot. Spot machines follow recorded
traces. The number of requested machines gives 8 (or 4) on average. All machines have the same speed, and the hub has
the same price everywhere. The trainings do not depend on prices, so each is priced with every trace: see `savings`.
"""

from collections.abc import Mapping, Sequence

from benchmarks.plots import save
from benchmarks.report import NOT_REACHED, Measured, Size, show
from benchmarks.vc_asgd import savings
from benchmarks.vc_asgd.market import ALIVE, MACHINES, bamboo
from benchmarks.vc_asgd.savings import BASE, COMPARED, OURS, Trained
from benchmarks.vc_asgd.setting import accuracy_at, once_above, points
from benchmarks.vc_asgd.systems import (
    AVERAGING,
    DATASET,
    DOWNPOUR,
    ELASTIC,
    NEWEST,
    ONE,
    PAPER,
    WHOLE,
    Stays,
    System,
    on_machines_that_stay,
    train,
    until,
)
from oddlot.machines import Always
from oddlot.report.svg_charts import Line

COUNTS = (2, 4, MACHINES, 2 * MACHINES)
"""Numbers of machines on demand."""
DRAWN_HOURS = 6.0
WORST = {"bill_saving_p3_min", "bill_saving_nc6", "time_over_on_demand", "accuracy_gap"}
"""Figures of the worst trace. A quick run has only one trace and does not measure them."""
STAYS = System(NEWEST, MACHINES, False)


def systems(size: Size) -> list[System]:
    """Return the systems of the figures and, except in quick runs, further systems for comparison."""
    found = [system for pair in COMPARED.values() for system in pair]
    if size is not Size.QUICK:
        found += [System(PAPER, MACHINES, False), System(NEWEST, 4, False), System(NEWEST, 4, True)]
        found += [System(ONE, 1, False), System(ELASTIC, MACHINES, True), System(DOWNPOUR, MACHINES, True)]
    return sorted({*found} - {BASE, STAYS}, key=lambda one: (one.strategy in WHOLE, *one))


def trained(
    stays: Stays, traces: Sequence[str], asked: Sequence[System], seed: int
) -> dict[System, dict[str, Trained]]:
    """Return all trainings. They end at the accuracy, except that ours trains at least the epochs of the base."""
    runs = {BASE: {"": stays.averaging}, STAYS: {"": stays.newest}}
    for system in asked:
        goal = f"epochs>={1.25 * stays.epochs}" if system == OURS else until(stays.epochs, stays.target)
        if system.on_spot:
            there = {name: bamboo(name) for name in traces}
            places = {name: (one.repeated(), one.requested(system.machines)) for name, one in there.items()}
        else:
            places = {"": (Always(), system.machines)}
        runs[system] = {
            name: train(stays.job, system.strategy, goal, seed, *place) for name, place in places.items()
        }
    return {
        system: {name: Trained.of(run, stays.target) for name, run in some.items()}
        for system, some in runs.items()
    }


def measure(size: Size, seed: int) -> dict[str, Measured]:
    """Return the savings in all markets, and the time and accuracy of the worst trace."""
    stays, traces = on_machines_that_stay(size, seed), size.pick(1, 1, len(ALIVE))
    found = trained(stays, list(ALIVE)[:traces], systems(size), seed)
    most = found[BASE][""].until
    assert most is not None, "federated averaging ends above its own accuracy less one point"
    title = f"{DATASET}, {stays.epochs} epochs, machines of one speed, to an accuracy of {stays.target:.4f}"
    saved = savings.measure(found, title)
    if size is not Size.QUICK:
        _tell_sizes(stays, size.pick((4,), COUNTS, COUNTS), seed)
        _draw(size, f"{DATASET} on demand and on spot, the first {DRAWN_HOURS:g} hours", found)
    spots = list(found[OURS].values())
    arrived = [one.until for one in spots if one.until is not None]
    worst = min(accuracy_at(one.run, stays.epochs) for one in spots)
    figures = {
        **saved,
        "time_over_on_demand": max(arrived) / most if len(arrived) == len(spots) else NOT_REACHED,
        "accuracy_gap": 100 * (stays.target + 0.01 - worst),
    }
    return {key: value for key, value in figures.items() if size is not Size.QUICK or key not in WORST}


def _draw(size: Size, title: str, found: Mapping[System, Mapping[str, Trained]]) -> None:
    """Plot accuracy over time. Systems on spot other than ours have only the first trace."""
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


def _tell_sizes(stays: Stays, counts: Sequence[int], seed: int) -> None:
    """Print time and machine-hours by number of machines, because the bill depends on both machines and strategy."""
    rows, goal = [], until(stays.epochs, stays.target)
    for count in counts:
        cells = [f"{count}"]
        for strategy in (AVERAGING, NEWEST):
            one = Trained.of(train(stays.job, strategy, goal, seed, Always(), count), stays.target)
            cells += [f"{one.until / 3600:.2f}", f"{one.machine_hours():.1f}"] if one.until else ["never", ""]
        rows.append(cells)
    columns = ["machines", "hours, federated averaging", "machine-hours", "hours, VC-ASGD", "machine-hours"]
    show(f"machines that stay, to an accuracy of {stays.target:.4f}", columns, rows)
