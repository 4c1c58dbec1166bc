"""10,000 machines and 50,000 subtasks of ten minutes per epoch, preempted as in a trace, without computation."""

import os
import time
from pathlib import Path

from benchmarks.report import Size, show
from oddlot import VCASGD, Machine, Simulated, fit
from oddlot.machines import Alive, Lognormal, Offer, Pools, Steps, Zone
from oddlot.machines.capacity import Capacity
from oddlot.machines.market_traces import read_alive
from oddlot.planner.run_shape import RunShape

MACHINES, SUBTASK_SECONDS = 10_000, 600.0
TRACE = "spot_bamboo_2020/aws-spot-instances-p2-xlarge-2020-11-20-to-2020-11-23.csv"


def capacity() -> tuple[Capacity, str]:
    """Return a scaled trace of 16 machines or, if it is missing, pools."""
    path = Path(os.environ.get("ODDLOT_DATA", "")) / TRACE
    if path.is_file():
        return Alive(read_alive(path, "hours").window(6 * 3600), of=16), path.name
    return Pools(20, 4 * 3600, 0.6, 1800), "pools (ODDLOT_DATA names no folder with the real trace)"


def measure(size: Size, seed: int) -> dict[str, float]:
    """Return the virtual days per minute of wall time."""
    zone, message = capacity()
    machines = MACHINES // size.pick(100, 1, 1)
    shards = 5 * machines
    job = RunShape(samples=shards).job()
    like = Machine("any", seconds_per_sample=SUBTASK_SECONDS, delay=Lognormal(0.2))
    fleet = [Zone("z", Offer("any", 0.9, Steps((0.0,), (0.27,))), machines, like, zone)]
    strategy = VCASGD(newest=True, deadline_seconds=3 * SUBTASK_SECONDS)
    began = time.perf_counter()
    until = f"epochs>={size.pick(1, 1, 5)}"
    run = fit(
        job, strategy, Simulated(fleet, seed=seed, computes=False), until=until, shards=shards, seed=seed
    )
    wall = time.perf_counter() - began
    days = float(run.summary["seconds"]) / 86400
    updates, lost = run.summary["updates"], run.summary["workers_lost"]
    rows = [[message, f"{updates:,}", f"{lost:,}", f"{days:.3f}", f"{wall:.1f}", f"{updates / wall:,.0f}"]]
    columns = ["preempted by", "updates", "machines lost", "virtual days", "wall seconds", "updates/s"]
    show(f"{machines:,} machines, {shards:,} subtasks of {SUBTASK_SECONDS:.0f} s an epoch", columns, rows)
    return {"virtual_days_per_minute_10000": days / (wall / 60)}
