"""Time on spot with other start times and other traces than the bill's: four traces of Bamboo, and Google's probes.

VC-ASGD runs the number of epochs that it needs on machines on demand, without computation. Traces are used as recorded,
with the hours before their first machine, and repeat. The number of requested machines is the bill's: it gives 8 on
average from the first machine on. Runs with 8 requested machines are measured as well.
"""

from collections.abc import Iterator
from statistics import median

from benchmarks.report import NOT_REACHED, Measured, Size, median_and_range, show
from benchmarks.vc_asgd.market import ALIVE, MACHINES, Recorded, bamboo, gcp
from benchmarks.vc_asgd.setting import SHARDS, reached, zone
from benchmarks.vc_asgd.systems import DEADLINE, on_machines_that_stay
from oddlot import VCASGD, Simulated, fit
from oddlot.machines.capacity import Capacity
from oddlot.planner.run_shape import RunShape

BEGINNINGS = 40
"""Number of start times, evenly spread over a trace."""
WITHIN = 1.5


def seconds(capacity: Capacity, count: int, epochs: float, seed: int) -> float:
    """Return the time of a run without computation, with the smallest shards that cause no warning."""
    samples = 5 * SHARDS
    job = RunShape(samples=samples).job()
    on = Simulated([zone(job, count, capacity)], seed=seed + 1, computes=False)
    strategy = VCASGD(newest=True, deadline_seconds=DEADLINE)
    run = fit(job, strategy, on, until=f"epochs>={epochs}", shards=SHARDS, seed=seed, quiet=True)
    return float(run.summary["seconds"])


def recorded() -> Iterator[tuple[str, Recorded, int]]:
    """Yield name, trace and number of requested machines of all traces."""
    for name in ALIVE:
        yield f"Bamboo {name}", bamboo(name, whole=True), bamboo(name).requested(MACHINES)
    for name, trace in gcp():
        yield f"GCP {name}", trace, trace.requested(MACHINES)


def measure(size: Size, seed: int) -> dict[str, Measured]:
    """Return the times over the time of federated averaging on demand, for all start times of all traces."""
    stays = on_machines_that_stay(size, seed)
    epochs, most = reached(stays.newest, stays.target, "epochs"), reached(stays.averaging, stays.target)
    assert most is not None, "federated averaging ends above its own accuracy less one point"
    if epochs is None:
        return {
            "time_over_on_demand_other_traces": NOT_REACHED,
            "time_over_on_demand_other_traces_within_1_5": 0.0,
        }
    beginnings = size.pick(2, BEGINNINGS, BEGINNINGS)
    rows, ratios, eight = [], list[float](), list[float]()
    for name, trace, many in recorded():
        here = {
            count: [
                seconds(trace.repeated(trace.seconds * n / beginnings), count, epochs, seed + n) / most
                for n in range(beginnings)
            ]
            for count in {MACHINES, many}
        }
        ratios += here[many]
        eight += here[MACHINES]
        cells = [f"{trace.availability:.3f}", f"{trace.longest_gap / 3600:.1f}", f"{many}"]
        for some in (here[many], here[MACHINES]):
            cells += [median_and_range(some, 2), f"{within(some):.2f}"]
        rows.append([name, *cells])
    columns = [
        "trace",
        "available",
        "longest gap, hours",
        "requested",
        "time over on demand",
        f"within {WITHIN}",
    ]
    title = f"{epochs} epochs, {beginnings} starts, over {most / 3600:.2f} hours on demand"
    show(title, [*columns, "time, 8 requested", f"within {WITHIN}"], rows)
    print(
        f"all: {median_and_range(ratios)}, within {WITHIN}: {within(ratios):.3f}; 8 requested: {median(eight):.3f}"
    )
    return {
        "time_over_on_demand_other_traces": ratios,
        "time_over_on_demand_other_traces_within_1_5": within(ratios),
        "time_over_on_demand_other_traces_8_requested": eight,
    }


def within(ratios: list[float]) -> float:
    """Return the share of ratios of at most `WITHIN`."""
    return sum(one <= WITHIN for one in ratios) / len(ratios)
