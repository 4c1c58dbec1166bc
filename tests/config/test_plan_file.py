"""Plan files: what is written is read again, and errors have a line."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest

from oddlot import (
    SGD,
    Adam,
    AdamW,
    Asynchronous,
    Groups,
    LocalSGD,
    Machine,
    ProportionalLoad,
    Quorum,
    Synchronous,
)
from oddlot.config.job_file import JobFile
from oddlot.config.overrides import Override
from oddlot.config.plan_file import PlanFile, check_plan_path, plan_in, read_plan, write_plan
from oddlot.config.toml_writer import toml_text
from oddlot.core.optimizers import Optimizer
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import JobError, UsageError
from oddlot.lr_schedules import Cosine, MultiStep
from oddlot.machines import Buying, Fleet
from oddlot.planner.candidates import Candidate
from oddlot.planner.plan import Plan
from oddlot.planner.plan_options import PlanOption, Range
from oddlot.train.job import Job
from oddlot.wire.codec import Codec
from oddlot.wire.registry import codec_of
from tests.planner.plans import a_plan, option
from tests.transcripts import raises

FLEET = Fleet([Machine(f"m{number}", 0.01) for number in range(5)])
EXACT = Range(1 / 3, 2.0000000000000004, 1e22)


def written(
    folder: Path,
    plan: Plan,
    *sets: str,
    make: Callable[[Job], Job] = lambda job: job,
    fleet: str = "fleet.toml",
) -> PlanFile:
    """Return the plan for digits that was written and read."""
    settings = JobFile.read("digits", [Override.parse(each) for each in sets])
    path = folder / "plan.toml"
    write_plan(plan, settings, make(settings.job()), FLEET, folder / fleet, path)
    return read_plan(path)


def tried(best: PlanOption, optimizer: Optimizer) -> PlanOption:
    return replace(best, candidate=Candidate(best.setup, optimizer))


@pytest.mark.parametrize(
    "strategy",
    [
        Groups(ProportionalLoad(Synchronous(), least=0.1), groups=3, damping=0.5),
        Groups(LocalSGD(steps=7, server=SGD(0.7, momentum=0.9, nesterov=True)), groups=2),
        Groups(Quorum(Synchronous(), quorum=0.6), groups=2),
        Asynchronous(damping=1 / 3),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_strategy_is_read_again(strategy: Strategy, tmp_path: Path) -> None:
    found = written(tmp_path, a_plan(option(strategy=strategy)))
    assert found.job_file.strategy() == strategy


@pytest.mark.parametrize(
    "optimizer",
    [
        SGD(0.1 / 3, momentum=-0.3, weight_decay=1e-300),
        SGD(1e-7, 0.9, nesterov=True),
        Adam(1 / 7, betas=(0.8, 0.99)),
        AdamW(),
    ],
    ids=str,
)
def test_optimizer_is_read_again(optimizer: Optimizer, tmp_path: Path) -> None:
    found = written(tmp_path, a_plan(tried(option(), optimizer)))
    assert found.job_file.job().optimizer == optimizer


def test_halved_learning_rates_are_a_schedule(tmp_path: Path) -> None:
    found = written(tmp_path, a_plan(option(halved_at=(1 / 3, 2.5))))
    assert found.job_file.job().lr_schedule == MultiStep((1 / 3, 2.5), 0.5)


def test_schedule_of_the_settings_is_kept(tmp_path: Path) -> None:
    sets = ("job.lr_schedule.kind=cosine", "job.lr_schedule.epochs=20")
    assert written(tmp_path, a_plan(option()), *sets).job_file.job().lr_schedule == Cosine(20)


@pytest.mark.parametrize("codec", [None, *map(codec_of, ("bf16", "nonzero_fp16"))], ids=str)
def test_run_settings_are_read_again(codec: Codec | None, tmp_path: Path) -> None:
    found = written(tmp_path, a_plan(option(codec=codec, batch=48)), "run.seed=3", "run.until=accuracy>=0.9")
    settings = found.job_file.run_settings()
    assert (settings["until"], settings["seed"]) == ("accuracy>=0.9", 3)
    assert (codec_of(settings["codec"]) if "codec" in settings else None) == codec
    assert found.job_file.job().batch_size == 48
    assert found.job_file.engine().max_workers == 5, "as many as machines"


def test_other_settings_are_kept(tmp_path: Path) -> None:
    sets = (
        "workload.hidden=16",
        "job.max_grad_norm=2.0",
        "engine.threads=3",
        "engine.in_flight=2",
        "run.skip_bad=true",
    )
    plain = written(tmp_path, a_plan(option()), *sets).job_file.source.plain
    assert plain["workload"] == {"name": "digits", "hidden": 16}
    assert plain["job"]["max_grad_norm"] == 2.0
    assert plain["engine"] == {"threads": 3, "in_flight": 1, "workers": 5}, "a plan has one task in flight"


def test_plan_has_the_size_of_its_job(tmp_path: Path) -> None:
    given = written(tmp_path, a_plan(option()), "workload.hidden=16").prediction
    assert (given.workload, given.samples, given.parameters) == ("digits", 1437, 7034)


def test_plan_of_another_workload_is_rejected(tmp_path: Path) -> None:
    """The workload of a plan file was changed by hand."""
    written(tmp_path, a_plan(option()))
    path = tmp_path / "plan.toml"
    path.write_text(path.read_text().replace('name = "digits"', 'name = "mnist"'))
    (line,) = [
        at for at, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("workload =")
    ]
    with raises(UsageError, "plan_of_other_job", name="workload", known="digits", given="mnist", line=line):
        read_plan(path)


def test_prediction_is_exact(tmp_path: Path) -> None:
    curve = ((0.0, 0.0, 2.3), (1 / 7, 1e-12, 1.9999999999999998))
    best = option(bought="on demand", seconds=EXACT, dollars=Range(0.0, 0.1, 0.3))
    policy = Buying(1 / 3, "uniform_progress", epochs=1.2345678901)
    limits: dict[str, Any] = {"deadline_hours": 1 / 3, "budget_dollars": 2.0, "buying": policy}
    found = written(tmp_path, a_plan(replace(best, curve=curve), **limits))
    assert found.fleet == tmp_path / "fleet.toml"
    given = found.prediction
    assert (given.machines, given.minimize, given.bought) == ("fleet.toml", "time", "on demand")
    assert (given.seconds, given.dollars, given.curve) == (EXACT, (0.0, 0.1, 0.3), curve)
    assert (given.deadline_hours, given.budget_dollars, given.buying) == (1 / 3, 2.0, policy)


def test_settings_before_the_plan_are_read_again(tmp_path: Path) -> None:
    """A new plan needs the optimizer of one worker, and not the optimizer that was planned for several groups."""
    sets = ("job.batch_size=24", "job.optimizer.lr=0.7", "strategy=local_sgd", "run.codec=fp16", "run.seed=3")
    found = written(tmp_path, a_plan(option(codec=codec_of("bf16"), batch=48)), *sets).before
    optimizer = found.job().optimizer
    assert isinstance(optimizer, SGD)
    assert (found.job().batch_size, optimizer.lr) == (24, 0.7)
    assert (found.strategy(), found.run_settings()["codec"]) == (LocalSGD(), "fp16")
    assert found.run_settings()["seed"] == 3
    bare = written(tmp_path, a_plan(option(codec=codec_of("bf16")))).before
    assert (bare.job().optimizer, bare.strategy()) == (JobFile.read("digits").job().optimizer, Synchronous())
    assert "codec" not in bare.run_settings()


def test_flags_hold_for_the_settings_before_a_plan(tmp_path: Path) -> None:
    written(tmp_path, a_plan(option()), "job.optimizer.lr=0.7")
    again = JobFile.read(str(tmp_path / "plan.toml"), [Override.parse("job.batch_size=8")])
    found = plan_in(again)
    assert found is not None
    optimizer = found.before.job().optimizer
    assert isinstance(optimizer, SGD)
    assert (found.before.job().batch_size, optimizer.lr) == (8, 0.7)


def test_fleet_file_elsewhere_has_a_complete_path(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    found = written(tmp_path / "plans", a_plan(option(bought="")), fleet="../fleet.toml")
    assert Path(found.prediction.machines).is_absolute()
    assert found.fleet.resolve() == tmp_path / "fleet.toml"
    assert found.prediction.bought == ""


class Scaled(SGD):
    """An optimizer of a workload, without a name in files."""


def test_optimizer_without_a_name_keeps_its_class(tmp_path: Path) -> None:
    """Only its learning rate is written. The workload makes the rest."""
    best = tried(option(), Scaled(0.25, 0.9))
    found = written(tmp_path, a_plan(best), make=lambda job: replace(job, optimizer=Scaled(0.5, 0.9)))
    assert found.job_file.source.plain["job"]["optimizer"] == {"lr": 0.25}


def test_plan_without_a_feasible_option_is_not_written(tmp_path: Path) -> None:
    with raises(JobError, "no_plan"):
        written(tmp_path, a_plan(option(is_feasible=False)))
    assert not (tmp_path / "plan.toml").exists()


PLAN = """\
workload = "digits"

[plan]
machines = "fleet.toml"
seconds = [1.0, 2.0, 3.0]
dollars = [0.0, 0.0, 0.0]
"""


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ("[plan]", "[plans]", "unknown_key", 3),
        ('machines = "fleet.toml"\n', "", "missing_key", 3),
        ("[1.0, 2.0, 3.0]", "[3.0, 2.0, 1.0]", "invalid_value", 5),
        ("[1.0, 2.0, 3.0]", "[1.0, 2.0, inf]", "invalid_value", 5),
        ("[1.0, 2.0, 3.0]", "[1.0, 2.0]", "too_few_values", 5),
        ("[1.0, 2.0, 3.0]", "2.0", "invalid_value", 5),
        (
            "[0.0, 0.0, 0.0]",
            "[0.0, 0.0, 0.0]\ncurve = [[2.0, 1.0, 1.0], [1.0, 1.0, 1.0]]",
            "invalid_value",
            7,
        ),
        ("[0.0, 0.0, 0.0]", '[0.0, 0.0, 0.0]\nminimize = "money"', "unknown_name", 7),
        ("[0.0, 0.0, 0.0]", "[0.0, 0.0, 0.0]\ndeadline_hours = 0", "invalid_value", 7),
        ("[0.0, 0.0, 0.0]", "[0.0, 0.0, 0.0]\nsecond = 0", "unknown_key", 7),
        ("[0.0, 0.0, 0.0]", "[0.0, 0.0, 0.0]\nbefore = 1", "invalid_value", 7),
        ("[0.0, 0.0, 0.0]", "[0.0, 0.0, 0.0]\nbuying = { deadline_hours = 0 }", "invalid_value", 7),
    ],
)
def test_invalid_files_are_rejected(old: str, new: str, code: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace(old, new))
    with raises(UsageError, code, path=str(path), line=line):
        read_plan(path)


def test_job_file_without_a_plan_is_no_plan_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('workload = "digits"')
    with raises(UsageError, "not_a_plan", path=str(path)):
        read_plan(path)
    with raises(UsageError, "not_a_plan", path=str(path)):
        check_plan_path(path)
    with raises(UsageError, "unwritable_file", path=str(tmp_path)):
        check_plan_path(tmp_path)
    path.write_text(PLAN)
    check_plan_path(path)
    assert read_plan(path).prediction.minimize == "time"
    with raises(UsageError, "not_toml"):
        read_plan("digits")


def test_nested_tables_are_written_as_toml() -> None:
    plain: dict[str, Any] = {
        "a": 1, "no key": 'a "quoted" \\ text\n', "none": None, "empty": [], "numbers": [1, 2.5, [True]],
        "table": {"inner": {"deep": {"x": 1e-320}}, "rows": [{"a": 1}, {"a": 2, "b": {"c": 3}}]}, "x.y": {"z": inf},
        "mixed": [{"a": 1}, 2],
    }  # fmt: skip
    found = tomllib.loads(toml_text(plain))
    assert found == {name: value for name, value in plain.items() if value is not None}
    assert str(tomllib.loads(toml_text({"x": nan}))["x"]) == "nan"
