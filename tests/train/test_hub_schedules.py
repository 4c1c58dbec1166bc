"""Schedules and clipping in complete runs: resumes, replays, values that are not finite, and functions that fail."""

import json
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import SGD, Asynchronous, LocalSGD, Strategy
from oddlot.core.commands import Step
from oddlot.core.conductor import Conductor
from oddlot.core.support.errors import CheckpointError, JobError
from oddlot.history.log import read_log
from oddlot.history.replay import replay
from oddlot.history.run_folder import RunFolder
from oddlot.lr_schedules import Cosine, MultiStep
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from tests.fits import (
    BATCH,
    SAMPLES,
    Place,
    a_job,
    distance,
    everything,
    fleet,
    in_batches,
    local,
    plain_loop,
    rows,
    trained,
)
from tests.run.test_resume import begun
from tests.sealed import reseal
from tests.transcripts import raises

pytestmark = pytest.mark.usefixtures("fork_server")

BOTH = pytest.mark.parametrize("on", [local(1), fleet(1)], ids=["local", "simulated"])
PAIRS = pytest.mark.parametrize(
    ("strategy", "on"), [(Asynchronous(), fleet(1)), (LocalSGD(steps=2), local(1))], ids=["hub", "worker"]
)
"""Runs with calls of the schedule by the hub or by a worker."""


# --- resumed and replayed ------------------------------------------------------------------------


@PAIRS
def test_resumed_run_continues_the_schedule(tmp_path: Path, strategy: Strategy, on: Place) -> None:
    """A resumed run ends with the same model as an uninterrupted run, and its log can be replayed."""
    job = a_job(optimizer=SGD(0.1), lr_schedule=Cosine(4, warmup_epochs=1), max_grad_norm=0.3)
    whole, _ = trained(job, strategy, fleet(1), "epochs>=4")
    folder = RunFolder(tmp_path)
    trained(job, strategy, fleet(1), "samples>=64", folder)
    run, state = trained(job, strategy, on, "epochs>=4", folder, resume=True)
    assert sorted(state.merged) == everything(SAMPLES, 4)
    assert distance(run.model, whole.model) < 1e-7


def test_resume_with_another_schedule_or_clipping_raises(tmp_path: Path) -> None:
    def starts(name: str, **changes: Any) -> Callable[..., oddlot.Run]:
        def go(**anew: Any) -> oddlot.Run:
            return begun(
                tmp_path / name, "epochs>=1", a_job(**changes | anew), resume="latest" if anew else None
            )

        go()
        return go

    go = starts("run", lr_schedule=Cosine(4), max_grad_norm=1.0)
    with raises(CheckpointError, "other_job") as caught:
        go(lr_schedule=MultiStep((1,)))
    assert caught.fields["different"] == {"lr_schedule": (repr(Cosine(4)), repr(MultiStep((1,))))}
    with raises(CheckpointError, "other_job", different={"max_grad_norm": (1.0, None)}):
        go(max_grad_norm=None)
    go(lr_schedule=Cosine(4))
    go = starts("function", lr_schedule=lambda epochs: 1.0)
    go(lr_schedule=lambda epochs: 1.0)  # a different function, at another address
    go = starts("none")
    assert not json.loads((tmp_path / "none" / "run.json").read_text()).keys() & {
        "lr_schedule",
        "max_grad_norm",
    }
    with raises(CheckpointError, "other_job", different={"lr_schedule": (None, repr(Cosine(4)))}):
        go(lr_schedule=Cosine(4))
    with raises(CheckpointError, "other_job", different={"lr_scheduler_every": (None, "version")}):
        go(lr_scheduler_every="version")


def test_old_log_without_schedules_replays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    trained(a_job(), LocalSGD(steps=2), fleet(2), "epochs>=2", folder)
    text = folder.log.read_text()
    assert "merged" not in text.partition("\n")[2], "nor says one of today more, without a schedule"
    older = text.replace(',"scheduled":false', "").replace('"kind":"delta"}', '"kind":"delta","pull":null}')
    assert older.count('"pull":null') > 4
    folder.log.write_text(older)
    reseal(folder.log)
    assert replay(tmp_path).difference is None
    state = Recipe(a_job(), LocalSGD(), fleet(2), RunConfig(until="epochs>=2")).conductor()
    older_state = {key: value for key, value in state.to_plain().items() if key != "scheduled"}
    assert Conductor.from_plain(older_state, LocalSGD) == state


def test_log_with_changed_merged_samples_fails_replay(tmp_path: Path) -> None:
    trained(a_job(lr_schedule=Cosine(4)), Asynchronous(), fleet(2), "epochs>=1", RunFolder(tmp_path))
    log = tmp_path / "records.jsonl"
    assert [r for r in read_log(log) for a in r.actions if isinstance(a, Step) and a.merged == 16]
    log.write_text(log.read_text().replace('"merged":16', '"merged":15', 1))
    reseal(log)
    assert replay(tmp_path).difference is not None


# --- errors --------------------------------------------------------------------------------------


@PAIRS
def test_non_finite_samples_are_reported_with_clipping(strategy: Strategy, on: Place) -> None:
    points, sides = rows()
    points[5] = nan
    job = a_job(train_data=(points, sides), max_grad_norm=0.1)
    with raises(JobError, "bad_samples") as caught:
        trained(job, strategy, on, "epochs>=1")
    assert 5 in caught.fields["rows"]
    run, _ = trained(job, strategy, on, "epochs>=1", skip_bad=True)
    assert run.summary["samples_skipped"] >= BATCH


def breaks_after_half(epochs: float) -> float:
    return 1.0 if epochs < 0.5 else nan


def fails_after_half(epochs: float) -> float:
    return 1.0 if epochs < 0.5 else 1.0 / (epochs - epochs)


@PAIRS
def test_failing_schedule_function_stops_the_run(strategy: Strategy, on: Place) -> None:
    """The function fails at the hub or at a worker, depending on the strategy."""
    with raises(JobError, "invalid_factor", epochs=0.5):
        trained(a_job(lr_schedule=breaks_after_half), strategy, on)
    with raises(JobError, "user_code_failed", where="the schedule", epochs=0.5):
        trained(a_job(lr_schedule=fails_after_half), strategy, on)


def test_invalid_schedule_function_raises_before_the_start(tmp_path: Path) -> None:
    with raises(JobError, "invalid_factor", given=None, epochs=0.0):
        begun(tmp_path / "run", "epochs>=1", a_job(lr_schedule=lambda _: None))
    assert not (tmp_path / "run").exists()


# --- off, or not computed ------------------------------------------------------------------------


@BOTH
def test_inactive_schedule_and_clipping_change_no_bit(on: Place) -> None:
    """A schedule with factor 1 and a norm that is never reached change no bit."""
    job = a_job(lr_schedule=lambda _: 1.0, max_grad_norm=1e6)
    run, _ = trained(job, Asynchronous(), on, "epochs>=3")
    assert distance(run.model, plain_loop(a_job(), in_batches(SAMPLES, BATCH, 3))) == 0


def test_schedule_has_no_effect_without_computation() -> None:
    runs = [
        trained(a_job(lr_schedule=schedule), Asynchronous(), fleet(3, computes=False), "epochs>=3")[0]
        for schedule in (None, Cosine(3))
    ]
    assert runs[0].summary == runs[1].summary
