"""Makespan of a job with losses without notice: the paper's formula compared with a run.

Atre, Jha, Rao (ScaDL 2021): n_s = 2,000 subtasks (50 shards, 40 epochs) of t_e = 144 s run on 5 clients with two
subtasks each (10 slots). A loss is detected t_o = 300 s after the subtask was assigned, and blocks its slot
until then. With a probability p of a loss during a subtask, the n = 200 subtasks of a slot take n (t_e + t_o p), if
each subtask is lost at most once. With repeated losses, they take n (t_e + t_o p / (1 - p)).
"""

from math import log
from statistics import median

from benchmarks.report import Size, median_and_range, show
from oddlot import VCASGD, Machine, Simulated, fit
from oddlot.machines import Lifetime, Lognormal
from oddlot.planner.run_shape import RunShape

SHARDS, SLOTS = 50, 10
T_E, T_O = 144.0, 300.0
RATES = (0.05, 0.1, 0.2)


def formula(p: float, epochs: int) -> float:
    """Return the makespan in seconds, with repeated losses."""
    return SHARDS * epochs / SLOTS * (T_E + T_O * p / (1 - p))


def fleet(p: float, unequal: bool) -> list[Machine]:
    """Return slots that are lost during a share p of subtasks. `unequal`: speeds differ (mean 1), and times vary."""
    machines = []
    for slot in range(SLOTS):
        speed = 0.8 + 0.4 * slot / (SLOTS - 1) if unequal else 1.0
        machines.append(
            Machine(
                f"slot{slot}",
                seconds_per_sample=T_E / speed,
                lifetime=Lifetime(-T_E / log(1 - p)),
                seconds_to_return=0.0,
                noticed_after_seconds=T_O,
                **({"delay": Lognormal(0.2)} if unequal else {}),  # type: ignore[arg-type]
            )
        )
    return machines


def seconds(p: float, epochs: int, seed: int, newest: bool, unequal: bool = False) -> float:
    """Return the seconds of a run without computation, with one sample per shard."""
    job = RunShape(samples=SHARDS).job()
    on = Simulated(fleet(p, unequal), seed=seed, computes=False)
    strategy = VCASGD(newest=newest, deadline_seconds=2 * T_O)
    run = fit(job, strategy, on, until=f"epochs>={epochs}", shards=SHARDS, seed=seed)
    return float(run.summary["seconds"])


def measure(size: Size, seed: int) -> dict[str, float]:
    """Return the largest error and the largest ratio of the three rates, by medians over the seeds."""
    epochs, seeds = size.pick(1, 40, 40), range(seed, seed + size.pick(1, 5, 25))
    rows, errors, newest = [], [], []
    for p in RATES:
        model, barrier, unequal = (
            [seconds(p, epochs, seed, *how) / formula(p, epochs) for seed in seeds]
            for how in ((True,), (False,), (True, True))
        )
        errors.append(abs(median(model) - 1))
        newest.append(max(median(model), median(unequal)))
        once = SHARDS * epochs / SLOTS * (T_E + T_O * p)
        hours = [f"{once / 3600:.2f}", f"{formula(p, epochs) / 3600:.2f}"]
        rows.append(
            [
                f"{p:.2f}",
                *hours,
                median_and_range(model),
                median_and_range(unequal),
                median_and_range(barrier),
            ]
        )
    columns = ["p", "n (t_e + t_o p), hours", "formula, hours", "its own model"]
    columns += ["newest weights, unequal clients", "barrier"]
    show(f"makespan over the paper's formula, {len(seeds)} seeds", columns, rows)
    return {"formula_error_max": max(errors), "newest_over_formula_max": max(newest)}
