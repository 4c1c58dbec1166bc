"""Time to an accuracy with one worker per group: tuned momentum against 0.9, each at its own best rate."""

from functools import cache
from math import inf
from statistics import median

import torch

from benchmarks.planner.rates import best_of_grid
from benchmarks.report import show
from oddlot import SGD, Machine, Synchronous
from oddlot.history.goals import Term
from oddlot.machines import Exponential, Fleet
from oddlot.planner.candidates import Candidate, Setup
from oddlot.planner.search import Search
from oddlot.run.config import RunConfig
from oddlot.strategies import Groups
from oddlot.workloads.digits import digits

WORKERS, BATCH = 16, 32
MOMENTA = (-0.3, 0.0, 0.3, 0.9)
UNTUNED = 0.9
FIRST_LR = 0.05
"""Learning rate that the search starts from, times 1 - momentum."""
MISSED = 3.0
"""Time of a run that does not arrive, as a multiple of the best time."""


@cache
def workers(seed: int) -> Search:
    """Return trials on a simulated fleet."""
    fleet = Fleet([Machine(f"m{number}", 0.01, Exponential()) for number in range(WORKERS)])
    config = RunConfig.of({"evaluate_every": "20 versions", "seed": seed})
    return Search(digits(batch_size=BATCH), fleet, Term("accuracy", ">=", 1.0), config)


SETUP = Setup(Groups(Synchronous(), groups=WORKERS), BATCH)


def seconds_to_goal(
    momentum: float, lr: float, seed: int, epochs: int, goal: float, limit: float = inf
) -> float:
    """Return the virtual seconds until the accuracy is reached, or infinity after `epochs` or `limit` seconds."""
    search = workers(seed)
    search.goal = Term("accuracy", ">=", goal)
    trial = search.trial(Candidate(SETUP, SGD(lr=lr, momentum=momentum)))
    trial.advance(limit, inf, epochs)
    reached = trial.reached
    trial.close()
    return reached.seconds if reached else inf


def best_rate(momentum: float, epochs: int, goal: float) -> tuple[float, float]:
    """Return the fastest learning rate, and its time."""
    return best_of_grid(
        FIRST_LR * (1 - momentum), lambda lr, limit: seconds_to_goal(momentum, lr, 0, epochs, goal, limit)
    )


def tuned_over_untuned(seeds: int, epochs: int, goal: float) -> float:
    """Return the time with the best momentum / the time with 0.9, as medians of the seeds."""
    torch.set_num_threads(1)
    found: dict[float, list[float]] = {}
    rows = []
    for momentum in MOMENTA:
        lr, first = best_rate(momentum, epochs, goal)
        found[momentum] = [
            first,
            *(seconds_to_goal(momentum, lr, seed, epochs, goal) for seed in range(1, seeds)),
        ]
        rows.append([f"{momentum:g}", f"{lr:.3g}", ", ".join(f"{each:.1f}" for each in found[momentum])])
    fastest = min(min(times) for times in found.values())
    middle = {each: median(min(time, MISSED * fastest) for time in times) for each, times in found.items()}
    show(
        f"virtual seconds to accuracy {goal}, {WORKERS} groups of one worker, exponential times",
        ["momentum", "best learning rate", "seconds by seed"],
        rows,
    )
    tuned = min(value for each, value in middle.items() if each != UNTUNED)
    return tuned / middle[UNTUNED]
