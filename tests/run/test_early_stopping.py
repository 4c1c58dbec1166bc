"""Early stopping, and the metric and direction that select the best evaluation."""

from collections.abc import Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import Gossip, Synchronous, UsageError
from oddlot.callbacks import EarlyStopping, RunProgress
from oddlot.history.best_metric import BestMetric
from oddlot.history.callback import StopRun
from oddlot.history.goals import Goal
from tests.fits import a_job, fleet, rows
from tests.run.test_mesh import gossiped, peers
from tests.transcripts import raises

RUN = RunProgress("digits", Goal.parse("epochs>=2"))


def stops_after(stopping: EarlyStopping, values: Sequence[float]) -> int | None:
    """Return the number of evaluations until the run is stopped. None if it is not."""
    stopping.on_start(RUN)
    for version, value in enumerate(values):
        try:
            stopping.on_evaluation(RUN, version, {stopping.target.name: value})
        except StopRun:
            return version + 1
    return None


@pytest.mark.parametrize(
    ("settings", "values", "stopped"),
    [
        ({"patience": 2}, [3, 2, 2, 2], 4),
        ({"patience": 2}, [3, 2, 3, 1, 2, 2], 6),
        ({"patience": 2}, [3, 2, 1, 0.5], None),
        ({"metric": "accuracy", "patience": 1}, [0.1, 0.2, 0.1], 3),
        ({"metric": "max f1", "patience": 1}, [1, 2, 3], None),
        ({"metric": "min f1", "patience": 1}, [1, 2], 2),
        ({"patience": 1, "min_delta": 0.5}, [3, 2, 1.5], 3),
        ({"patience": 2}, [nan, nan], 2),
        ({"patience": 2}, [inf, 1, nan, nan], 4),
    ],
)
def test_run_stops_after_patience_evaluations_without_improvement(
    settings: dict[str, Any], values: list[float], stopped: int | None
) -> None:
    assert stops_after(EarlyStopping(**settings), values) == stopped


def test_early_stopping_ends_the_run_and_counts_across_a_resume(tmp_path: Path) -> None:
    job = a_job(eval_data=rows(), metrics={"constant": lambda outputs, targets: 0.5})
    options: dict[str, Any] = {"out": tmp_path, "evaluate_every": "1 versions"}
    oddlot.fit(job, Synchronous(), fleet(), until="versions>=3", **options)
    stopping = EarlyStopping("max constant", patience=4)
    run = oddlot.fit(
        job, Synchronous(), fleet(), until="versions>=99", callbacks=[stopping], resume="latest", **options
    )
    assert run.ended.startswith("stopped: ")
    assert run.history[-1]["versions"] == run.history[0]["versions"] + 4
    assert (stopping.best, stopping.best_version) == (0.5, run.history[0]["versions"])


def test_early_stopping_ends_a_mesh() -> None:
    changes = {"metrics": {"constant": lambda outputs, targets: 0.5}}
    stopping = EarlyStopping("max constant", patience=2)
    run = gossiped(Gossip(), peers(2), until="epochs>=99", callbacks=[stopping], job=changes)
    assert run.ended.startswith("stopped: ")
    assert len(run.history) < 10


def test_metric_that_is_not_evaluated_fails_before_the_run() -> None:
    with raises(UsageError, "unknown_name", given="acuracy", nearest="accuracy"):
        oddlot.fit(
            a_job(eval_data=rows(), metrics={"accuracy": oddlot.accuracy}),
            Synchronous(),
            fleet(),
            until="epochs>=1",
            callbacks=[EarlyStopping("max acuracy")],
        )
    with raises(UsageError, "no_evaluation_set", name="metric"):
        oddlot.fit(a_job(), Synchronous(), fleet(), until="epochs>=1", callbacks=[EarlyStopping()])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("loss", "min loss"), ("accuracy", "max accuracy"), ("max  f1", "max f1"), ("min loss", "min loss")],
)
def test_best_metric_has_a_direction(text: str, expected: str) -> None:
    assert str(BestMetric.parse(text, "keep_best")) == expected
    assert BestMetric.parse(expected, "keep_best") == BestMetric.parse(text, "keep_best")


@pytest.mark.parametrize("text", ["f1", "", "max", "largest f1", "max f1 score", 3])
def test_invalid_best_metric_is_named(text: Any) -> None:
    code = "no_direction" if text == "f1" else "invalid_value"
    with raises(UsageError, code, name="keep_best", given=text):
        BestMetric.parse(text, "keep_best")


def test_invalid_settings_of_early_stopping_are_named() -> None:
    with raises(UsageError, "invalid_value", name="patience", given=0):
        EarlyStopping(patience=0)
