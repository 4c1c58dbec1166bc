"""The paper's optimizer on 32 spot machines with stragglers: time to the goal, and the part of its probes.

Times of updates scatter, so short probes often see saturation too early. Longer probes cost more than they save here.
"""

from dataclasses import dataclass

import torch

from benchmarks.planner import fleets
from benchmarks.planner.jobs import JOBS
from benchmarks.report import show
from oddlot.history.goals import Goal
from oddlot.planner.omnivore_optimizer import OmnivoreSettings, OptimizedRun, omnivore_optimizer

PROBE_SECONDS = 10.0
"""Seconds of a probe: 20 synchronous updates, and 90 with one worker per group."""
SETTINGS = OmnivoreSettings(
    probe_seconds=PROBE_SECONDS,
    steady_probe_seconds=PROBE_SECONDS,
    training_seconds=50 * PROBE_SECONDS,  # as in the paper's code: five probes are 10 % of it
)
MAX_SECONDS = 5_000.0


@dataclass(frozen=True)
class PaperRun:
    """A run of the paper's optimizer."""

    job: str
    seed: int
    run: OptimizedRun


def paper_runs(
    seeds: int, max_seconds: float = MAX_SECONDS, names: tuple[str, ...] = tuple(JOBS)
) -> list[PaperRun]:
    """Run the paper's optimizer on each job and seed, and print the times and choices."""
    torch.set_num_threads(1)
    runs = []
    for name in names:
        make, until = JOBS[name]
        job = make()
        (goal,) = Goal.parse(until, job.metrics).terms
        for seed in range(seeds):
            found = omnivore_optimizer(
                job, fleets.stragglers(), goal, SETTINGS, max_seconds=max_seconds, seed=seed
            )
            runs.append(PaperRun(name, seed, found))
    show(
        f"the paper's optimizer on 32 spot machines with stragglers, probes of {PROBE_SECONDS:g} s",
        [
            "job",
            "seed",
            "seconds to the goal",
            "of probes",
            "without probes",
            "trained with (groups, momentum, rate)",
        ],
        [_row(each) for each in runs],
    )
    return runs


def _row(each: PaperRun) -> list[str]:
    run = each.run
    trained = [
        f"({choice.groups}, {choice.momentum:g}, {choice.lr:.2g})"
        for choice in run.choices
        if choice.phase == "training"
    ]
    total = "not reached" if run.seconds is None else f"{run.seconds:.0f}"
    net = "" if run.seconds is None else f"{run.seconds - run.overhead_seconds:.0f}"
    return [each.job, f"{each.seed}", total, f"{run.overhead_seconds:.0f}", net, ", ".join(trained)]
