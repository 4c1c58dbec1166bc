"""Predictions for compute groups: seconds per update against the simulator, and theorem 7 in two forms."""

from math import inf, log

import pytest

from benchmarks.planner.hardware import simulated
from oddlot import Machine
from oddlot.machines import Deterministic, Exponential, Hub
from oddlot.planner.hardware_efficiency import update_time
from oddlot.planner.statistical_efficiency import (
    best_momentum,
    convergence_rate,
    implicit_momentum,
    memoryless_staleness,
    theorem_7_rate,
    updates_needed,
)

CURVATURES = (1.0, 0.1)


@pytest.mark.parametrize("groups", [1, 3, 8])
@pytest.mark.parametrize("delay", [Deterministic(), Exponential()], ids=repr)
def test_predicted_seconds_are_those_of_the_simulator(
    delay: Deterministic | Exponential, groups: int
) -> None:
    machines, hub = [Machine(f"m{number}", 0.01, delay) for number in range(8)], Hub(seconds_per_update=0.01)
    predicted = update_time(machines, groups, 256, hub)
    assert predicted.seconds == pytest.approx(simulated(machines, hub, groups, 150 * groups), rel=0.12)
    assert predicted.bound <= predicted.seconds * (1 + 1e-9)
    assert 0 <= predicted.barrier_share < 1


def test_saturated_hub_bounds_the_seconds() -> None:
    machines = [Machine(f"m{number}", 0.001) for number in range(8)]
    saturated = update_time(machines, 8, 8, Hub(seconds_per_update=0.1))
    assert saturated.seconds == pytest.approx(0.1, rel=0.02)
    assert saturated.hub_share == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("groups", [1, 2, 5, 8])
@pytest.mark.parametrize("momentum", [-0.3, 0.0, 0.6])
def test_theorem_7_is_the_recurrence_with_memoryless_staleness(groups: int, momentum: float) -> None:
    recurrence = convergence_rate(0.3, momentum, CURVATURES, memoryless_staleness(groups))
    assert recurrence == pytest.approx(theorem_7_rate(0.3, momentum, CURVATURES, groups), abs=1e-4)


def test_one_group_without_momentum_is_gradient_descent() -> None:
    assert convergence_rate(0.3, 0.0, (1.0,), [1.0]) == pytest.approx(0.7)
    assert theorem_7_rate(0.3, 0.0, (1.0,), 1) == pytest.approx(0.7)


def test_constant_delay_is_stable_up_to_its_limit() -> None:
    """The largest stable product of rate and curvature at a delay of 7 updates is 2 sin(pi / 30)."""
    delay = [0.0] * 7 + [1.0]
    assert convergence_rate(0.2, 0.0, (1.0,), delay) < 1 < convergence_rate(0.22, 0.0, (1.0,), delay)


def test_best_momentum_falls_as_groups_are_added() -> None:
    momenta = [round(-0.9 + 0.1 * number, 1) for number in range(19)]
    best = [best_momentum(0.25, CURVATURES, groups, momenta)[0] for groups in (1, 2, 4, 8)]
    assert best == sorted(best, reverse=True)
    assert implicit_momentum(4) == 0.75


def test_updates_needed_are_infinite_if_training_diverges() -> None:
    assert updates_needed(0.5, 0.25) == pytest.approx(log(0.25) / log(0.5))
    assert updates_needed(1.01, 0.25) == inf
