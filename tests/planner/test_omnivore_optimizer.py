"""The optimizer of the paper: the rules of its grid search, and runs with its phases and overhead."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from oddlot import Machine
from oddlot.history.goals import Term
from oddlot.machines import Exponential, Fleet, Hub
from oddlot.planner import omnivore_optimizer as optimizer
from oddlot.planner.candidates import group_counts
from oddlot.planner.omnivore_optimizer import (
    OmnivoreSettings,
    OptimizedRun,
    Point,
    chosen,
    diverges_too,
    fastest,
    omnivore_optimizer,
    refined,
    worth_trying,
)
from tests.fits import a_job, rows

MOMENTA = (0.0, 0.3, 0.6, 0.9)
FLEET = Fleet([Machine(f"m{number}", 0.01, Exponential()) for number in range(4)], Hub(0.001))
SINGLE = Fleet([Machine("m0", 0.01)])
SECONDS = 0.08
"""Seconds of one machine for a batch."""
QUICK = OmnivoreSettings(
    probe_seconds=2.0,
    steady_probe_seconds=1.0,
    training_seconds=5.0,
    lrs=(0.02, 0.002),
    evaluate_every="5 versions",
)
GOAL, NEVER = Term("loss", "<=", 0.05), Term("loss", "<=", -1.0)


def optimized(
    settings: OmnivoreSettings = QUICK, fleet: Fleet = FLEET, goal: Term = GOAL, seconds: float = 60.0
) -> OptimizedRun:
    job = a_job(count=96, eval_data=rows(40))
    return omnivore_optimizer(job, fleet, goal, settings, max_seconds=seconds)


def phases(run: OptimizedRun) -> Counter[str]:
    return Counter(choice.phase for choice in run.choices)


def test_groups_are_doubled() -> None:
    assert [group_counts(workers) for workers in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_skip_rules_leave_the_points_next_to_the_last_choice() -> None:
    assert worth_trying([0.1, 0.01], [0.9], None) == [(0.01, 0.9), (0.1, 0.9)]
    left = worth_trying([0.1, 0.01], MOMENTA, Point(0.1, 0.6))
    assert left == [(0.01, 0.6), (0.01, 0.9), (0.1, 0.0), (0.1, 0.3), (0.1, 0.6)]
    assert worth_trying([0.2], MOMENTA, Point(0.1, 0.6)) == []


def test_points_above_a_diverged_point_are_skipped() -> None:
    diverged = Point(0.1, 0.3)
    assert diverges_too(Point(0.1, 0.3), diverged)
    assert diverges_too(Point(0.2, 0.6), diverged)
    assert not diverges_too(Point(0.2, 0.0), diverged)
    assert not diverges_too(Point(0.01, 0.9), diverged)
    assert not diverges_too(Point(9.0, 0.9), None)


def test_higher_points_are_preferred_within_the_buffer() -> None:
    losses = {Point(0.01, 0.9): 1.0, Point(0.1, 0.0): 1.005, Point(0.1, 0.3): 1.02, Point(0.01, 0.0): 1.0005}
    assert chosen(losses, 1.0) == (0.01, 0.9)
    assert chosen(losses, 1.01) == (0.1, 0.0)
    assert chosen(losses, 1.03) == (0.1, 0.3)


def test_finer_momenta_are_around_the_best() -> None:
    assert [refined(momentum) for momentum in MOMENTA] == [
        [0.0, 0.1, 0.2],
        [0.1, 0.2, 0.3, 0.4, 0.5],
        [0.4, 0.5, 0.6, 0.7, 0.8],
        [0.7, 0.8, 0.9],
    ]


def test_fastest_groups_are_the_most_before_saturation() -> None:
    assert fastest({1: 1.0, 2: 0.8, 4: 0.75, 8: 0.5}, 0.1) == 8
    assert fastest({1: 1.0, 2: 0.8, 4: 0.75}, 0.1) == 2
    assert fastest({1: 1.0}, 0.1) == 1


def test_run_reaches_the_goal_and_counts_its_probes() -> None:
    run = optimized()
    assert run.seconds is not None
    assert run.seconds > run.overhead_seconds > 5 * QUICK.probe_seconds
    first, *_ = run.choices
    assert (first.phase, first.groups, first.momentum) == ("cold start", 1, 0.9)
    assert phases(run)["training"] >= 1
    assert [choice.seconds for choice in run.choices] == sorted(choice.seconds for choice in run.choices)
    assert optimized() == run, "a run is a function of its seed"


def test_goal_reached_in_a_probe_ends_the_run() -> None:
    run = optimized(goal=Term("loss", "<=", 0.5))
    assert run.seconds is not None
    assert run.overhead_seconds < run.seconds < run.overhead_seconds + QUICK.probe_seconds
    assert phases(run)["training"] == 0


def test_saturation_ends_the_cold_start() -> None:
    busy = Fleet([Machine(f"m{number}", 0.0001) for number in range(4)], Hub(seconds_per_update=0.01))
    equal = Fleet([Machine(f"m{number}", 0.01) for number in range(4)])
    cold = [choice.groups for choice in optimized(fleet=busy, goal=NEVER, seconds=25.0).choices[:3]]
    assert cold == [1, 2, 4], "with more groups, the hub merges fewer updates per step"
    first, second, *_ = optimized(fleet=equal, goal=NEVER, seconds=7.0).choices
    assert (first.phase, first.groups, second.phase) == ("cold start", 1, "training"), (
        "two groups are not faster"
    )
    assert second.seconds == pytest.approx(3 * QUICK.probe_seconds), "one probe with two groups found it"


def test_repeated_part_after_the_last_snapshot_is_overhead() -> None:
    run = optimized(fleet=SINGLE, goal=NEVER, seconds=16.0)
    assert (run.reached, phases(run)) == (False, {"cold start": 1, "training": 2, "steady state": 1})
    probes = 2 * QUICK.probe_seconds + 5 * QUICK.steady_probe_seconds
    repeated = 0.02 * (16.0 - probes)
    assert repeated <= run.overhead_seconds - probes <= repeated + 2 * SECONDS


def test_groups_are_halved_while_the_best_momentum_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(search: Any, groups: int, point: Point, seconds: float) -> float:
        search.overhead += seconds
        search.update_seconds.setdefault(groups, 1 / groups)
        best = (0.9 if groups == 1 else 0.3) if search.snapshot is None else (0.0 if groups > 1 else 0.3)
        return 1.0 if point.momentum == best else 2.0

    monkeypatch.setattr(optimizer._Search, "_probe", probe)
    run = optimized(goal=NEVER, seconds=60.0)
    found = [(choice.phase, choice.groups, choice.momentum) for choice in run.choices]
    assert found[:3] == [("cold start", 1, 0.9), ("cold start", 2, 0.3), ("cold start", 4, 0.3)]
    assert found[4:8] == [
        ("steady state", 4, 0.0),
        ("steady state", 2, 0.0),
        ("steady state", 1, 0.3),
        ("training", 1, 0.3),
    ]


def test_job_that_diverges_at_every_rate_is_not_trained() -> None:
    run = optimized(replace(QUICK, lrs=(1e6, 1e7)))
    assert (run.reached, run.choices) == (False, [])
    assert run.overhead_seconds == QUICK.probe_seconds, "the higher rate is skipped"


def test_training_that_diverges_is_repeated_with_a_lower_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    def cold_start(search: Any) -> tuple[int, Point]:
        search.update_seconds[1] = SECONDS
        return 1, Point(1e6, 0.9)

    monkeypatch.setattr(optimizer._Search, "cold_start", cold_start)
    run = optimized(fleet=SINGLE, goal=NEVER, seconds=10.0)
    first, second, *_ = run.choices
    assert (first.phase, first.lr, second.phase) == ("training", 1e6, "steady state")
    assert second.lr <= 1e4, "the search starts from a tenth of the rate"
    assert run.overhead_seconds >= QUICK.training_seconds


def test_finer_and_longer_probes_are_counted() -> None:
    fine = replace(QUICK, refine_seconds=0.5, final_seconds=1.0)
    usual, finer = (optimized(each, SINGLE).choices[0] for each in (QUICK, fine))
    assert finer.seconds == usual.seconds + 3 * 0.5 + 1.0
