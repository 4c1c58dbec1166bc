"""Sizing rules, against the figures of the paper and against simulated runs."""

from dataclasses import replace

import pytest

from oddlot import Asynchronous, Machine, Simulated, fit
from oddlot.machines import Hub
from oddlot.planner.run_shape import RunShape
from oddlot.planner.sizing import Sizing, parallel_efficiency, workers_at


def test_parallel_efficiency_has_the_figures_of_the_paper() -> None:
    speedups = [workers * parallel_efficiency(workers, 0.1) for workers in (2, 4, 8)]
    assert speedups == pytest.approx([1.83, 3.14, 4.89], abs=0.005)
    assert workers_at(0.8, 0.2 / 2.2) == 4


def test_hub_servers_has_the_example_of_the_paper() -> None:
    sizing = Sizing(compute_seconds=0.5, model_bytes=244_000_000, hub_bytes_per_second=1.25e9, workers=4)
    assert sizing.hub_servers == 4


@pytest.mark.parametrize("workers", [4, 8, 16, 32])
def test_most_workers_reach_the_efficiency_in_the_simulator(workers: int) -> None:
    """A hub that is busy for a time per update is the server: workers beyond `most_workers` wait for it."""
    sizing = Sizing(compute_seconds=1.0, model_bytes=50, hub_bytes_per_second=1_000.0, workers=workers)
    machines = [Machine(f"m{number}", 0.1) for number in range(workers)]
    engine = Simulated(machines, hub=Hub(seconds_per_update=sizing.transfer_seconds), computes=False)
    run = fit(
        RunShape(samples=20_000, batch=10).job(), Asynchronous(), engine, until="versions>=400", quiet=True
    )
    computed = 400 * sizing.compute_seconds / (workers * run.summary["seconds"])
    assert (computed >= 0.95 * sizing.efficiency) == (workers <= sizing.most_workers)


def test_largest_model_and_smallest_bandwidth_are_at_the_limit() -> None:
    sizing = Sizing(compute_seconds=1.0, model_bytes=1_000, hub_bytes_per_second=1e5, workers=8)
    larger = replace(sizing, model_bytes=round(1.1 * sizing.largest_model_bytes))
    slower = replace(sizing, hub_bytes_per_second=sizing.least_bytes_per_second / 1.1)
    assert max(larger.most_workers, slower.most_workers) < 8
    assert replace(sizing, model_bytes=sizing.largest_model_bytes).most_workers >= 8
    assert replace(sizing, hub_bytes_per_second=1.001 * sizing.least_bytes_per_second).most_workers >= 8
