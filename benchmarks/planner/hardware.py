"""Seconds per update: predictions of `update_time` against the simulator, by number of groups."""

from benchmarks.report import show
from oddlot import Machine, Simulated, Synchronous, fit
from oddlot.core.commands import Step
from oddlot.machines import Deterministic, Hub, Lognormal
from oddlot.planner.hardware_efficiency import update_time
from oddlot.planner.run_shape import RunShape
from oddlot.strategies import Groups

WORKERS, BATCH = 32, 256
BATCH_SECONDS = 3.3
"""Seconds of one machine for a batch, as in the paper's model of CaffeNet."""
HUB_SECONDS = 0.003
"""Seconds of the hub for an update of a worker."""
GROUPS = (1, 2, 4, 8, 16, 32)


def errors(rounds: int) -> dict[float, list[float]]:
    """Return the relative errors by the variation of computation times, for each number of groups.

    Each group has `rounds` rounds. The first quarter is not measured.
    """
    found: dict[float, list[float]] = {0.0: [], 0.3: [], 1.0: []}
    rows = []
    for cv, values in found.items():
        delay = Lognormal(cv) if cv else Deterministic()
        machines = [Machine(f"m{number}", BATCH_SECONDS / BATCH, delay) for number in range(WORKERS)]
        row = [f"{cv:g}"]
        for groups in GROUPS:
            hub = Hub(seconds_per_update=HUB_SECONDS)
            predicted = update_time(machines, groups, BATCH, hub)
            measured = simulated(machines, hub, groups, rounds * groups)
            values.append(abs(predicted.seconds / measured - 1))
            row.append(
                f"{measured:.3f} ({predicted.seconds / measured:.2f}, {predicted.bound / measured:.2f})"
            )
        rows.append(row)
    show(
        "seconds per update, simulated (predicted / simulated, the paper's bound / simulated)",
        ["cv", *(f"g = {groups}" for groups in GROUPS)],
        rows,
    )
    return found


def simulated(machines: list[Machine], hub: Hub, groups: int, updates: int) -> float:
    """Return the mean seconds per update of a run without gradients, after the first quarter of its updates."""
    job = RunShape(samples=100_000, batch=BATCH).job()
    engine = Simulated(machines, hub=hub, computes=False)
    run = fit(job, Groups(Synchronous(), groups=groups), engine, until=f"versions>={updates}", quiet=True)
    times = [record.now for record in run.records for action in record.actions if isinstance(action, Step)]
    measured = times[len(times) // 4 :]
    return (measured[-1] - measured[0]) / (len(measured) - 1)
