"""The number of samples of a step, and the outputs that report it."""

import json
from pathlib import Path
from typing import Any

import pytest

from oddlot import (
    VCASGD,
    AdaptiveK,
    AdaptiveLoad,
    Asynchronous,
    BackupTasks,
    FastestK,
    LocalSGD,
    Quorum,
    Ray,
    Synchronous,
    fit,
)
from oddlot.core.commands import Step
from oddlot.core.strategy import Strategy
from oddlot.report.run_report import RunReport
from oddlot.run.checks import LOCAL_STEP, UPDATE, effective_batch
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from tests.fits import a_job, fleet
from tests.toys import Timed


@pytest.mark.parametrize(
    ("strategy", "samples", "step"),
    [
        (Synchronous(), 128, UPDATE),
        (Synchronous(samples=100), 400, UPDATE),
        (BackupTasks(Synchronous()), 128, UPDATE),
        (FastestK(k=3), 96, UPDATE),
        (AdaptiveK(k=2), 64, UPDATE),
        (AdaptiveLoad(least=200), 200, UPDATE),
        (Asynchronous(), 32, UPDATE),
        (Quorum(Synchronous(), quorum=0.6), 96, UPDATE),
        (Quorum(LocalSGD()), 32, LOCAL_STEP),
        (VCASGD(), 32, LOCAL_STEP),
        (Timed(), None, None),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "on") else "",
)
def test_effective_batch_counts_all_updates_of_a_step(
    strategy: Strategy, samples: int | None, step: str | None
) -> None:
    found: Any = effective_batch(strategy.traits(32), batch=32, tasks=4)
    assert (found and found.samples, found and found.step) == (samples, step)


@pytest.mark.parametrize(
    ("strategy", "workers", "is_most"),
    [
        (Synchronous(), (1, 4), True),
        (Synchronous(), (4, 4), False),
        (FastestK(k=3), (1, 4), False),
        (Asynchronous(), (1, 4), False),
    ],
)
def test_effective_batch_is_a_maximum_if_workers_may_join(
    strategy: Strategy, workers: tuple[int, int], is_most: bool
) -> None:
    found = Recipe(a_job(), strategy, Ray(workers), RunConfig(until="epochs>=1")).effective_batch
    assert found is not None
    assert found.is_most == is_most
    assert str(found).startswith("up to ") == is_most


def test_run_json_summary_and_report_have_the_effective_batch(tmp_path: Path) -> None:
    run = fit(a_job(), FastestK(k=2), fleet(), until="epochs>=1", out=tmp_path)
    begun = json.loads((tmp_path / "run.json").read_text())["effective_batch"]
    assert begun == run.summary["effective_batch"] == RunReport.read(tmp_path).summary["effective_batch"]
    assert "2 tasks" in begun


def test_effective_batch_counts_tasks_in_flight(tmp_path: Path) -> None:
    run = fit(a_job(), Synchronous(), fleet(in_flight=2), until="epochs>=1", out=tmp_path)
    assert "4 tasks" in run.summary["effective_batch"]
    assert max(len(a.shares) for r in run.records for a in r.actions if isinstance(a, Step)) == 4
