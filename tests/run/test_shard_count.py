"""The default number of shards for strategies with one shard per task, and warnings about it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oddlot import (
    VCASGD,
    BackupTasks,
    CheckpointError,
    FederatedAveraging,
    Shards,
    Strategy,
    Synchronous,
    fit,
)
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from tests.fits import BATCH, a_job, fleet, rows
from tests.transcripts import raises, warns

MINIBATCHES = 100


def recipe(strategy: Strategy, workers: int, minibatches: int = MINIBATCHES, **settings: Any) -> Recipe:
    on = fleet(workers, in_flight=settings.pop("in_flight", 1))
    job = a_job(count=minibatches * BATCH)
    return Recipe(job, strategy, on, RunConfig(until="epochs>=1", **settings))


@pytest.mark.filterwarnings("ignore:.* assigns whole shards")
@pytest.mark.parametrize(
    ("shards", "strategy", "settings"),
    [
        (2, VCASGD(), {"workers": 2}),
        (4, VCASGD(), {"workers": 2, "in_flight": 2}),
        (10, VCASGD(), {"workers": 20}),
        (1, VCASGD(), {"workers": 2, "minibatches": 19}),
        (1, VCASGD(), {"workers": 2, "minibatches": 3}),
        (3, VCASGD(), {"workers": 2, "shards": 3}),
        (1, VCASGD(), {"workers": 2, "shards": 1}),
        (3, BackupTasks(VCASGD()), {"workers": 3}),
        (2, FederatedAveraging(), {"workers": 2}),
        (6, FederatedAveraging(clients=6), {"workers": 2}),
        (1, Synchronous(), {"workers": 2}),
    ],
)
def test_default_shards_fit_tasks_of_ten_minibatches(
    shards: int, strategy: Strategy, settings: dict[str, Any]
) -> None:
    found = recipe(strategy, **settings)
    assert (found.shards, len(found.conductor().ledger.cursors)) == (shards, shards)


def test_resumed_run_keeps_its_shards(tmp_path: Path) -> None:
    """A resumed run keeps its shards even if it has more workers than at the start."""
    job, out = a_job(count=400), tmp_path / "run"

    def shards(workers: int, **options: Any) -> int:
        fit(job, VCASGD(), fleet(workers), out=out, **options)
        found: int = json.loads((out / "run.json").read_text())["shards"]
        return found

    assert shards(2, until="epochs>=1") == 2
    with warns("few_shards", shards=2, workers=4):
        assert shards(4, until="epochs>=2", resume="latest") == 2
    with raises(CheckpointError, "other_job", different={"shards": (2, 4)}):
        shards(4, until="epochs>=3", resume="latest", shards=4)


def test_presharded_data_set_the_number_of_shards(tmp_path: Path) -> None:
    """A run with a count of 1 in its run.json can be resumed."""
    job, out = replace(a_job(), train_data=Shards.of(rows(), 3)), tmp_path / "run"
    fit(job, VCASGD(), fleet(2), until="epochs>=1", out=out)
    file = out / "run.json"
    saved = json.loads(file.read_text())
    assert saved["shards"] == 3
    file.write_text(json.dumps(saved | {"shards": 1}))
    fit(job, VCASGD(), fleet(2), until="epochs>=2", out=out, resume="latest")
    assert json.loads(file.read_text())["shards"] == 1


@pytest.mark.parametrize("strategy", [VCASGD(), FederatedAveraging()], ids=lambda one: type(one).__name__)
def test_few_or_small_shards_warn(strategy: Strategy) -> None:
    name = type(strategy).__name__
    with warns("small_shards", strategy=name, shards=25, minibatches=4.0) as caught:
        recipe(strategy, 2, shards=25)
        recipe(strategy, 2, shards=20)
        recipe(strategy, 2)
    assert len(caught.all) == 1, "not of 5 minibatches"
    with warns("few_shards", strategy=name, shards=1, workers=2):
        recipe(strategy, 2, minibatches=6)
    one_part = replace(a_job(), train_data=Shards.of(rows(), 1))
    with warns("few_shards", strategy=name, shards=1, workers=2):
        Recipe(one_part, strategy, fleet(2), RunConfig(until="epochs>=1"))
