"""A plan for real workers: 4 processes, two of them slowed down, against all numbers of groups measured."""

from dataclasses import replace

from benchmarks.report import NOT_REACHED, median_and_range, show
from oddlot import SGD, Job, Local, Machine, Strategy, Synchronous, fit
from oddlot.machines import Fleet
from oddlot.planner.candidates import for_groups
from oddlot.planner.plan import plan
from oddlot.strategies import Groups
from oddlot.workloads.digits import digits

WORKERS, GROUPS = 4, (1, 2, 4)
SECONDS_PER_SAMPLE, SLOWER = 0.0015, 4.0
"""Speed that workers imitate, and the factor of two of them."""
EVERY = "10 versions"


def real_over_best(goal: str, epochs: int, seeds: int) -> float:
    """Return the time of the plan over the fastest of all, each measured on this machine.

    The others have the momentum and rate that the planner would give them without a search.
    """
    machines = tuple(
        Machine(f"w{number + 1}", SECONDS_PER_SAMPLE * (SLOWER if number >= WORKERS // 2 else 1.0))
        for number in range(WORKERS)
    )
    job, until = replace(digits(), optimizer=SGD(lr=0.01, momentum=0.9)), f"{goal} or epochs>={epochs}"
    found = plan(job, Fleet(machines), until=until, evaluate_every=EVERY)
    kinds: dict[str, tuple[Job, Strategy]] = {
        f"{groups}": (
            replace(job, optimizer=for_groups(job.optimizer, groups)),
            Groups(Synchronous(), groups=groups),
        )
        for groups in GROUPS
    }
    name = f"planned: {found.best.setup.groups}"
    kinds[name] = found.job(job), found.strategy
    times, rows = dict[str, float](), []
    for kind, (each, strategy) in kinds.items():
        seconds = list[float]()
        for seed in range(seeds):
            run = fit(
                each,
                strategy,
                Local(workers=WORKERS, as_if=machines),
                until=until,
                evaluate_every=EVERY,
                seed=seed,
                quiet=True,
            )
            seconds.append(NOT_REACHED if run.ended.startswith("epochs") else run.summary["seconds"])
        times[kind] = sum(seconds) / seeds
        rows.append([kind, median_and_range(seconds, 1)])
    show(
        f"seconds to {goal}, {WORKERS} worker processes, two of them {SLOWER:g} times slower",
        ["groups", "seconds"],
        rows,
    )
    return times[name] / min(times.values())
