"""Planned runs: the comparison with the prediction, and new plans as segments of the run."""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import SGD, Callback, Groups, Job, Machine, Simulated, Synchronous
from oddlot.core.records import Record
from oddlot.core.support.errors import UsageError
from oddlot.history.callback import RunProgress
from oddlot.history.log import read_log
from oddlot.history.metrics import Tally
from oddlot.history.run_folder import RunFolder
from oddlot.lr_schedules import MultiStep
from oddlot.machines import Buying, Fleet, Lognormal, Offer, Steps, Zone
from oddlot.machines.market import all_machines
from oddlot.planner import planned_run
from oddlot.planner.candidates import Candidate
from oddlot.planner.fleet_speed import slowed
from oddlot.planner.plan import Plan, plan
from oddlot.planner.planned_run import After, fit_planned, keeps_settings, loss_at, remaining_goal
from oddlot.planner.prediction import Prediction
from tests.fits import a_job, rows
from tests.planner.plans import a_plan, option
from tests.transcripts import raises

FLEET = Fleet([Machine(f"m{number}", 0.01, Lognormal(0.5), dollars_per_hour=1.0) for number in range(4)])
GOAL = "loss<=0.45 or epochs>=60"
EVERY = "5 versions"


def job() -> Job:
    return a_job(count=96, eval_data=rows(40), optimizer=SGD(0.02, momentum=0.5))


@cache
def planned() -> tuple[Plan, Prediction]:
    found = plan(job(), FLEET, until=GOAL, evaluate_every=EVERY, rehearsals=1)
    best = found.best
    assert best.seconds is not None
    assert best.dollars is not None
    return found, Prediction(
        machines="fleet.toml", seconds=best.seconds, dollars=best.dollars, curve=tuple(found.curve)
    )


def run_planned(found: Plan, prediction: Prediction, fleet: Fleet, out: Path, **more: Any) -> oddlot.Run:
    return fit_planned(
        found.job(job()),
        found.strategy,
        Simulated.of(fleet, more.get("seed", 5)),
        prediction,
        FLEET,
        out=out,
        until=GOAL,
        evaluate_every=EVERY,
        quiet=True,
        **more,
    )


class Ends(Callback):
    """A callback that counts starts, and notes evaluated versions and ends."""

    def __init__(self) -> None:
        self.starts, self.versions, self.ends = 0, list[int](), list[str]()

    def on_start(self, run: RunProgress) -> None:
        self.starts += 1

    def on_evaluation(self, run: RunProgress, version: int, metrics: Mapping[str, float]) -> None:
        self.versions.append(version)

    def on_end(self, run: RunProgress, ended: str) -> None:
        self.ends.append(ended)


def segments(out: Path) -> list[Any]:
    found: list[Any] = RunFolder(out).settings()["segments"]
    return found


def test_run_that_is_slower_than_predicted_is_planned_again(tmp_path: Path) -> None:
    found, prediction = planned()
    seen, steps, ends = list[Record](), list[str](), Ends()
    slow = slowed(FLEET, 4.0)
    run = run_planned(
        found, prediction, slow, tmp_path, callbacks=[seen.append, ends], on_progress=steps.append
    )
    assert (ends.starts, ends.ends) == (1, ["loss<=0.45"]), "all segments are one run"
    assert ends.versions == [row["versions"] for row in run.history]
    assert run.ended == "loss<=0.45"
    assert any(step.startswith("rehearsing") for step in steps)
    assert len(segments(tmp_path)) == 1, "the new plan has the same settings, so its schedule continues"
    assert oddlot.replay(tmp_path).difference is None
    assert seen == list(read_log(tmp_path / "records.jsonl"))  # each record once, in order


def test_run_as_predicted_has_one_segment(tmp_path: Path) -> None:
    found, prediction = planned()
    steps = list[str]()
    run = run_planned(found, prediction, FLEET, tmp_path, on_progress=steps.append, seed=1)  # as rehearsed
    assert run.ended == "loss<=0.45"
    assert not steps


def run_other(out: Path, **more: Any) -> oddlot.Run:
    """Run another strategy than the predicted one, on slower machines."""
    _, prediction = planned()
    return fit_planned(
        replace(job(), optimizer=SGD(0.02, momentum=0.0)),
        Synchronous(),
        Simulated.of(slowed(FLEET, 4.0), 5),
        prediction,
        FLEET,
        out=out,
        until=GOAL,
        evaluate_every=EVERY,
        quiet=True,
        **more,
    )


def test_new_plan_is_a_segment(tmp_path: Path) -> None:
    """Prediction of another strategy: the new plan differs, and its rate counts from its start."""
    run_other(tmp_path)
    first, second = segments(tmp_path)[:2]
    assert first["strategy"].startswith("Synchronous")
    assert second["strategy"].startswith("Groups")
    assert oddlot.replay(tmp_path).difference is None


@pytest.mark.parametrize(
    ("epochs", "change", "keeps"),
    [
        (1.0, {}, True),
        (2.5, {}, False),  # the schedule has halved the rate
        (2.5, {"optimizer": SGD(0.05, momentum=-0.2)}, True),
        (1.0, {"optimizer": SGD(0.1, momentum=0.0)}, False),
        (1.0, {"lr_schedule": None}, False),
        (1.0, {"lr_schedule": MultiStep((2.0,), 0.1)}, False),  # the user's
        (1.0, {"batch_size": 16}, False),
    ],
)
def test_schedule_continues_if_a_new_plan_has_the_present_settings(
    epochs: float, change: dict[str, Any], keeps: bool
) -> None:
    strategy = Groups(Synchronous(), groups=2)
    best = option(2, halved_at=(1.0,))
    now = replace(
        job(), optimizer=SGD(0.1, momentum=-0.2), lr_schedule=MultiStep((2.0, 3.0), 0.5), batch_size=8
    )
    new = a_plan(replace(best, candidate=Candidate(best.setup, change.pop("optimizer", now.optimizer))))
    now = replace(now, **change)
    assert keeps_settings(new, now, strategy, epochs) == keeps
    assert not keeps_settings(new, now, replace(strategy, groups=4), epochs)
    assert not keeps_settings(new, now, Synchronous(), epochs)


def test_stopped_run_that_was_planned_again_is_resumed(tmp_path: Path) -> None:
    seen = list[Record]()  # records since the new plan

    def stop(record: Record) -> None:
        if (tmp_path / "run.json").exists() and len(segments(tmp_path)) > 1:
            seen.append(record)
        if len(seen) == 20:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(oddlot.Interrupted):
        run_other(tmp_path, callbacks=[stop])
    assert run_other(tmp_path, resume="latest").ended == "loss<=0.45"
    assert oddlot.replay(tmp_path).difference is None


@pytest.mark.parametrize(
    ("planned_for", "name", "given"),
    [({"samples": 95, "parameters": 27}, "samples", 96), ({"parameters": 28}, "parameters", 27)],
)
def test_plan_of_another_job_is_rejected(
    planned_for: dict[str, int], name: str, given: int, tmp_path: Path
) -> None:
    found, prediction = planned()
    other = replace(prediction, **planned_for)  # type: ignore[arg-type]  # these are numbers
    with raises(UsageError, "plan_of_other_job", name=name, known=planned_for[name], given=given):
        run_planned(found, other, FLEET, tmp_path)
    assert not list(tmp_path.iterdir())


def test_new_plan_has_the_planned_buying_policy(tmp_path: Path) -> None:
    """The fleet file may have no policy, or another one."""
    _, prediction = planned()
    spot = Fleet([Zone("east", Offer("big", 2.0, Steps((0.0,), (1.0,))), 4, Machine("any", 0.01))])
    steps = list[str]()
    run = fit_planned(
        replace(job(), optimizer=SGD(0.02, momentum=0.0)),
        Synchronous(),
        Simulated.of(slowed(spot, 4.0), 5),
        replace(prediction, buying=Buying(1.0, "greedy", epochs=3.0)),
        replace(spot, buying=Buying(1.0)),
        out=tmp_path / "run",
        until=GOAL,
        evaluate_every=EVERY,
        quiet=True,
        on_progress=steps.append,
    )
    assert run.ended == "loss<=0.45"
    assert any("greedy with seed" in each for each in steps)
    with raises(UsageError, "no_spot_zone"):
        run_planned(planned()[0], replace(prediction, buying=Buying(1.0)), FLEET, tmp_path)


def test_run_of_a_plan_with_a_profile_is_planned_again_at_its_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fleet file has other speeds than the profile that the plan was made with."""
    found, prediction = planned()
    profiled = replace(prediction, compute_factor=8.0, merge_seconds=0.5)
    fleets = list[Fleet]()

    def plan_again(_: Job, fleet: Fleet, **__: Any) -> Plan:
        fleets.append(fleet)
        return found

    monkeypatch.setattr(planned_run, "plan", plan_again)
    run_planned(found, profiled, slowed(FLEET, 4.0), tmp_path)
    assert fleets[0].hub.seconds_per_update == 0.5
    seconds = [each.seconds_per_sample for each in all_machines(fleets[0].machines)]
    assert seconds == pytest.approx([0.01 * 8.0 * 4.0] * 4, rel=0.2)


def test_new_plan_keeps_the_kind_of_strategy_and_fits_the_engine(tmp_path: Path) -> None:
    """Checkpoints may be elsewhere, and there may be fewer workers than machines in the fleet of the plan."""
    _, prediction = planned()
    run = fit_planned(
        replace(job(), optimizer=SGD(0.1, momentum=0.0)),
        oddlot.LocalSGD(steps=2),
        Simulated.of(replace(slowed(FLEET, 20.0), machines=slowed(FLEET, 20.0).machines[:2]), 5),
        prediction,
        FLEET,
        out=tmp_path / "run",
        checkpoints=str(tmp_path / "elsewhere"),
        until=GOAL,
        evaluate_every=EVERY,
        quiet=True,
    )
    assert run.ended == "loss<=0.45"
    assert len(segments(tmp_path / "run")) > 1
    assert all("LocalSGD" in each["strategy"] for each in segments(tmp_path / "run"))


def test_run_continues_if_the_deadline_is_used_up(tmp_path: Path) -> None:
    found, prediction = planned()
    late = Prediction(**{**vars(prediction), "deadline_hours": 1e-6})
    run = run_planned(found, late, slowed(FLEET, 4.0), tmp_path)
    assert run.ended == "loss<=0.45"
    assert len(segments(tmp_path)) == 1


def test_predicted_loss_is_interpolated() -> None:
    curve = ((0.0, 0.0, 3.0), (10.0, 1.0, 2.0), (20.0, 2.0, 1.0), (30.0, 3.0, 1.5), (40.0, 4.0, 0.5))
    prediction = Prediction(machines="f", seconds=(40.0, 50.0, 60.0), dollars=(0.0, 0.0, 0.0), curve=curve)
    assert loss_at(prediction, 0.0) == 3.0
    assert loss_at(prediction, 15.0) == 1.5
    assert loss_at(prediction, 25.0) == 1.0  # the best so far
    assert loss_at(prediction, 35.0) == 0.75
    assert loss_at(prediction, 90.0) == 0.5
    assert loss_at(replace(prediction, curve=()), 15.0) == inf


def test_new_plan_has_the_rest_of_the_limits() -> None:
    tally = Tally(100)
    tally.advance(1800.0)
    assert (
        remaining_goal("loss<=0.5 or hours>=2 or epochs>=3", job(), tally)
        == "loss<=0.5 or hours>=1.5 or epochs>=3"
    )
    assert remaining_goal("loss<=0.5 or hours>=0.4", job(), tally) is None


def test_slower_fleet_keeps_its_prices() -> None:
    fleet = slowed(FLEET, 3.0)
    assert [each.seconds_per_sample for each in fleet.machines] == pytest.approx([0.03] * 4)  # type: ignore[union-attr]
    assert fleet.on_demand() == fleet


def test_schedule_continues_where_the_run_is() -> None:
    assert After(lambda epochs: 1 / (1 + epochs), 3.0)(1.0) == 0.2
