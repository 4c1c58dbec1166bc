"""Plans against exhaustive search, against default settings, and against simulated runs."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median

import torch

from benchmarks.planner import fleets
from benchmarks.planner.jobs import JOBS, teacher_job
from benchmarks.planner.rates import best_of_grid
from benchmarks.report import NOT_REACHED, Size, show
from oddlot import SGD, Job, Simulated, Synchronous, fit
from oddlot.history.goals import Goal, Term
from oddlot.machines import Fleet
from oddlot.planner.candidates import Candidate, Setup, seconds_per_sample
from oddlot.planner.estimate import purchase_options
from oddlot.planner.plan import Plan, plan
from oddlot.planner.plan_options import planned_job
from oddlot.planner.search import Search
from oddlot.run.config import RunConfig
from oddlot.strategies import Groups

MOMENTA = (-0.3, 0.0, 0.3, 0.6, 0.9)
DEFAULT_MOMENTUM = 0.9
EVERY = "20 versions"
FIRST_REACH = 0.2
"""Value of lr / (1 - momentum) that the search for the rate of a default starts from."""
MOST_EPOCHS = 4.0
"""Epochs after which a run has not reached its goal."""
SLACK = 1.3
"""Deadline, as a multiple of the time of the best plan of the exhaustive search."""
SIMULATED_SEED = 100
"""Seed of the first simulated run. The planner has not seen these seeds."""


@dataclass(frozen=True)
class Case:
    """A job, its goal, and a fleet."""

    name: str
    job: Job
    until: str
    fleet: Fleet
    groups: Sequence[int]

    @property
    def goal(self) -> Term:
        """Return the goal."""
        return Goal.parse(self.until, self.job.metrics, evaluated=True).terms[0]

    def search(self, seed: int) -> Search:
        """Return trials of the job on the fleet."""
        config = RunConfig.of({"evaluate_every": EVERY, "seed": seed})
        bought = next(iter(purchase_options(self.fleet).values()))
        return Search(self.job, bought, self.goal, config)


def cases(size: Size) -> Iterator[Case]:
    """Yield the cases: one job on 32 stragglers or, in the full form, two jobs on three fleets."""
    if size is Size.SMOKE:
        yield Case("teacher on stragglers", teacher_job(), "loss<=3.35", fleets.stragglers(), (1, 32))
        return
    counts = {"stragglers": (1, 2, 4, 8, 16, 32), "equal": (1, 2, 3, 4, 6, 8), "mixed": (1, 2, 4, 6, 9, 18)}
    is_full = size is Size.FULL
    for fleet, groups in list(counts.items())[: 3 if is_full else 1]:
        for name, (make, goal) in list(JOBS.items())[: 2 if is_full else 1]:
            yield Case(f"{name} on {fleet}", make(), goal, getattr(fleets, fleet)(), groups)


def seconds_to_goal(search: Search, candidate: Candidate, limit: float = inf) -> float:
    """Return the virtual seconds until a run reaches the goal, or infinity after `limit` or too many epochs."""
    trial = search.trial(candidate)
    trial.advance(limit, inf, MOST_EPOCHS)
    reached = trial.reached
    trial.close()
    return reached.seconds if reached else inf


def best_rate(search: Search, setup: Setup, momentum: float) -> tuple[float, float]:
    """Return the fastest lr / (1 - momentum), and its time."""

    def measure(reach: float, limit: float) -> float:
        optimizer = SGD(lr=reach * (1 - momentum), momentum=momentum)
        return seconds_to_goal(search, Candidate(setup, optimizer), limit)

    return best_of_grid(FIRST_REACH, measure)


def exhaustive(case: Case, search: Search, reach: float, batches: Sequence[int]) -> tuple[float, str, int]:
    """Return the time and the name of the fastest plan of all, and their number.

    Each has the `reach` that is best for synchronous training, in proportion to the batch size, and half of it if it is
    not the fastest so far with this one.
    """
    best, name, count = inf, "", 0
    for batch in batches:
        for groups in reversed(case.groups):
            setup = Setup(Groups(Synchronous(), groups=groups), batch)
            for momentum in MOMENTA:
                count += 1
                for factor in (1.0, 0.5):
                    lr = reach * factor * batch / case.job.batch_size * (1 - momentum)
                    candidate = Candidate(setup, SGD(lr=lr, momentum=momentum))
                    seconds = seconds_to_goal(search, candidate, best)
                    if seconds < best:
                        best, name = seconds, str(candidate)
                        break
    return best, name, count


@dataclass
class Results:
    """The figures of all cases."""

    choice: list[float] = field(default_factory=list)
    with_search: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)
    over_synchronous: list[float] = field(default_factory=list)
    over_defaults: list[float] = field(default_factory=list)
    seconds_errors: list[float] = field(default_factory=list)
    dollars_errors: list[float] = field(default_factory=list)
    deadlines_met: list[bool] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    predictions: list[list[str]] = field(default_factory=list)


def measure(case: Case, results: Results, batches: Sequence[int], seeds: int) -> None:
    """Measure one case."""
    with ExitStack() as closing:
        search = case.search(0)
        closing.callback(search.close)
        one, many = (
            Setup(Groups(Synchronous(), groups=case.groups[at]), case.job.batch_size) for at in (0, -1)
        )
        reach, synchronous = best_rate(search, one, DEFAULT_MOMENTUM)
        _, asynchronous = best_rate(search, many, DEFAULT_MOMENTUM)
        tuned = SGD(lr=reach * (1 - DEFAULT_MOMENTUM), momentum=DEFAULT_MOMENTUM)
        best, name, count = exhaustive(case, search, reach, batches)
        bound = _bound(search, case)
    if max(synchronous, best) == inf:
        raise RuntimeError(f"{case.name}: synchronous training or every plan misses the goal")
    job = replace(case.job, optimizer=tuned)
    found = plan(
        job,
        case.fleet,
        until=f"{case.until} or epochs>={MOST_EPOCHS}",
        batch_sizes=batches,
        evaluate_every=EVERY,
    )
    chosen = found.chosen_seconds or NOT_REACHED
    total = chosen + found.spent_seconds
    results.choice.append(chosen / best)
    results.with_search.append(total / best)
    results.share.append(found.search_share)
    if "stragglers" in case.name:
        results.over_synchronous.append(synchronous / chosen)
        results.over_defaults.append(min(synchronous, asynchronous) / chosen)
    results.rows.append(
        [
            case.name,
            f"{best:.0f} ({count} plans, {name})",
            f"{chosen:.0f} ({found.best.name})",
            f"{found.spent_seconds:.0f} ({found.search_share:.0%})",
            f"{synchronous:.0f}",
            f"{asynchronous:.0f}",
            f"{bound:.1f}",
        ]
    )
    simulate(case, job, found, results, seeds, SLACK * best)


def _bound(search: Search, case: Case) -> float:
    """Return the seconds per update of one group over those of the fastest number of groups."""
    setups = [Setup(Groups(Synchronous(), groups=groups), case.job.batch_size) for groups in case.groups]
    times = [seconds_per_sample(setup, search.fleet, 1, 1) or inf for setup in setups]
    return times[0] / min(times)


def simulate(case: Case, job: Job, found: Plan, results: Results, seeds: int, deadline: float) -> None:
    """Compare the prediction for the fleet as it is with complete simulated runs of other seeds."""
    bought, fleet = next(iter(purchase_options(case.fleet).items()))
    option = next(each for each in found.options if each.bought == bought)
    seconds, dollars = option.seconds, option.dollars
    assert seconds is not None, "the plan has rehearsals"
    assert dollars is not None, "the plan has rehearsals"
    runs = list[tuple[float, float]]()
    for seed in range(SIMULATED_SEED, SIMULATED_SEED + seeds):
        run = fit(
            planned_job(job, option),
            option.setup.strategy,
            Simulated.of(fleet, seed),
            until=f"{case.until} or epochs>={3 * MOST_EPOCHS}",
            evaluate_every=EVERY,
            seed=seed,
            quiet=True,
        )
        reached = not run.ended.startswith("epochs")
        pair = (run.summary["seconds"], run.summary["dollars"])
        runs.append(pair if reached else (NOT_REACHED, NOT_REACHED))
    times, costs = (list(values) for values in zip(*runs, strict=True))
    results.seconds_errors.append(abs(median(times) / seconds.middle - 1))
    if dollars.middle:
        results.dollars_errors.append(abs(median(costs) / dollars.middle - 1))
    is_promised = seconds.high <= deadline
    results.deadlines_met += [is_promised and each <= deadline for each in times]
    promised = f"{deadline:.0f} s: {'feasible' if is_promised else 'not feasible'}"
    results.predictions.append(
        [
            case.name,
            *(f"{value:.3g}" for value in (seconds.middle, median(times), dollars.middle, median(costs))),
            f"{promised}, met by {sum(each <= deadline for each in times)} of {seeds}",
        ]
    )


def figures(size: Size, seeds: int, batches: Sequence[int]) -> dict[str, float | None]:
    """Measure all cases, print the tables, and return the figures."""
    torch.set_num_threads(1)
    results = Results()
    for case in cases(size):
        measure(case, results, batches, seeds)
    show(
        "virtual seconds to the goal",
        [
            "job and fleet",
            "best of an exhaustive search",
            "planned",
            "search",
            "synchronous",
            "asynchronous, momentum 0.9",
            "HE(1) / min HE(g); paper: 1.9-12 in total",
        ],
        results.rows,
    )
    show(
        f"predictions, and medians of {seeds} simulated runs of other seeds",
        [
            "job and fleet",
            "seconds predicted",
            "simulated",
            "dollars predicted",
            "simulated",
            f"deadline of {SLACK} times the exhaustive best",
        ],
        results.predictions,
    )
    return {
        "time_over_exhaustive": max(results.choice),
        "time_over_exhaustive_with_search": max(results.with_search),
        "search_share": max(results.share),
        "speedup_over_synchronous": min(results.over_synchronous),
        "speedup_over_defaults_min": min(results.over_defaults),
        "prediction_error_seconds": max(results.seconds_errors),
        "prediction_error_dollars": max(results.dollars_errors, default=None),
        "deadlines_met_share": sum(results.deadlines_met) / len(results.deadlines_met),
    }
