"""`oddlot plan`: the table, the files, invalid input, and Ctrl-C."""

import json
import os
import shlex
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from oddlot.config.plan_file import read_plan
from oddlot.config.profile_file import read_profile
from oddlot.planner import plan_search, rehearsals
from oddlot.planner.rehearsals import Rehearsal
from oddlot.report.html_page import MARK
from tests.command import Oddlot
from tests.transcripts import mask, transcribe

JOBS = """\
import oddlot, os, signal, torch
from torch import nn

def points(lr=0.1, metric="accuracy"):
    x = torch.randn(48, 2, generator=torch.Generator().manual_seed(5))
    data = x, (x @ torch.tensor([1.0, -2.0]) > 0).long()
    return oddlot.Job(
        lambda: nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2)), data, nn.functional.cross_entropy,
        batch_size=8, optimizer=oddlot.SGD(lr, momentum=0.9), device="cpu", eval_data=data,
        metrics={"accuracy": globals()[metric]}, until="accuracy>=0.9",
    )

def accuracy(outputs, targets):
    return oddlot.accuracy(outputs, targets)

def endless(outputs, targets):
    return 0.0

def killed(outputs, targets):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
"""
MARKET = """\
[[offers]]
name = "big"
dollars_per_hour = 36.0
spot_dollars_per_hour = 9.0

[[zones]]
name = "east"
offer = "big"
count = 4
seconds_per_sample = 0.01
delay = { kind = "lognormal", cv = 0.8 }
"""
PLAN = ("plan", "plannable:points", "--machines", "market.toml", "--rehearsals", "1")


@pytest.fixture
def planner(oddlot: Oddlot, tmp_path: Path) -> Oddlot:
    """Return the command line in a folder with a job to plan and a spot fleet."""
    (tmp_path / "plannable.py").write_text(JOBS)
    (tmp_path / "market.toml").write_text(MARKET)
    sys.modules.pop("plannable", None)
    return oddlot


def test_plan_prints_the_options_and_how_to_run_the_best(planner: Oddlot) -> None:
    answer = planner(*PLAN, "--deadline", "1", "--groups", "1,4", "--out", "plan.toml")
    assert answer.code == 0, answer.err
    (last,) = [line for line in answer.out.splitlines() if line.startswith("  run ")]
    transcribe(last)
    assert answer.out.count("spot 30 %") == 2
    assert "rehearsing" in answer.err or "comparing candidates" in answer.err
    run = planner.json("simulate", "plan.toml", "--machines", "market.toml")
    assert run["ended"].startswith("accuracy>=0.9")
    found = read_plan("plan.toml")
    assert found.prediction.deadline_hours == 1.0
    before, again = Path("plan.toml").read_text(), ("--quiet", "--rehearsals", "1", "--groups", "1,4")
    assert planner("plan", "plan.toml", *again, "--out", "plan.toml").out == ""
    assert Path("plan.toml").read_text() == before, (
        "its fleet, its deadline, and the settings before the plan"
    )


def test_plan_of_another_version_of_the_job_is_not_run(planner: Oddlot) -> None:
    """The error names the line of the plan file."""
    assert planner(*PLAN, "--groups", "4", "--rehearsals", "0", "--out", "plan.toml").code == 0
    lines = Path("plan.toml").read_text().splitlines()
    Path("plannable.py").write_text(JOBS.replace("nn.Linear(2, 5)", "nn.Linear(2, 6)").replace("(5,", "(6,"))
    sys.modules.pop("plannable")
    line = 1 + lines.index("parameters = 27")
    fields = {"name": "parameters", "known": 27, "given": 32, "line": line}
    planner.rejects("plan_of_other_job", "train", "--plan", "plan.toml", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        (None, "unreadable_file", {}),
        ("cv = 0.8", "invalid_value", {"file": "market.toml", "file_line": 11}),
    ],
)
def test_error_of_the_fleet_has_the_line_of_the_plan_file(
    change: str | None, code: str, fields: dict[str, Any], planner: Oddlot
) -> None:
    assert planner(*PLAN, "--groups", "4", "--rehearsals", "0", "--out", "plan.toml").code == 0
    line = 1 + Path("plan.toml").read_text().splitlines().index('machines = "market.toml"')
    Path("market.toml").unlink()
    if change:
        Path("market.toml").write_text(MARKET.replace(change, "cv = -1.0"))
    for command in (("train", "--plan", "plan.toml"), ("plan", "plan.toml")):
        planner.rejects(code, *command, path="plan.toml", line=line, **fields)


def test_plan_with_a_profile_has_the_measured_speed(planner: Oddlot) -> None:
    assert planner("profile", "plannable:points", "--out", "profile.toml").code == 0
    options = ("--groups", "4", "--rehearsals", "0")
    profiled = ("--profile", "profile.toml", "--out", "plan.toml")
    slow, fast = planner.json(*PLAN, *options), planner.json(*PLAN, *options, *profiled)
    assert slow["best"]["seconds"][1] > fast["best"]["seconds"][1]
    measured = read_profile("profile.toml")
    prediction = read_plan("plan.toml").prediction
    assert prediction.compute_factor == pytest.approx(measured.seconds_per_sample(8) / 0.01)
    assert prediction.merge_seconds == measured.merge_seconds
    planner.rejects("missing_setting", "plan", "plan.toml", name="profile")
    text = Path("profile.toml").read_text().replace("parameters = 27", "parameters = 28")
    Path("other.toml").write_text(text)
    planner.rejects("other_profile", *PLAN, "--profile", "other.toml", name="parameters", known=28, given=27)


def test_json_has_all_options_and_prices(planner: Oddlot) -> None:
    found = planner.json(*PLAN, "--minimize", "dollars", "--budget", "100")
    assert found["best"] == found["options"][0]
    assert (found["minimize"], found["budget_dollars"], found["best"]["bought"]) == ("dollars", 100.0, "spot")
    assert found["spot_prices"]["1.3"]["dollars"][1] == pytest.approx(1.3 * found["best"]["dollars"][1])
    assert {each["groups"] for each in found["options"]} == {1, 2, 4}


def test_page_and_plot_are_self_contained(planner: Oddlot) -> None:
    for _ in range(2):  # its own files are overwritten
        assert planner(*PLAN, "--html", "plan.html", "--svg", "plan.svg", "--quiet").code == 0
    page, plot = Path("plan.html").read_text(), Path("plan.svg").read_text()
    assert page.count("<tr>") > 3
    assert MARK in page
    assert MARK in plot
    for text in (page, plot):
        assert 'class="mark dot feasible"' in text
        assert "prefers-color-scheme: dark" in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert ET.fromstring(plot).tag == "{http://www.w3.org/2000/svg}svg"


def test_fleet_without_prices_has_no_plot(planner: Oddlot) -> None:
    fleet = Path("fleet.toml")
    fleet.write_text(fleet.read_text().replace("dollars_per_hour = 3.6\n", ""))
    answer = planner(*PLAN, "--machines", "fleet.toml", "--html", "plan.html", "--svg", "plan.svg")
    assert answer.code == 0
    transcribe(answer.out.splitlines()[-1])
    assert "cost" not in answer.out.splitlines()[1]
    assert not Path("plan.svg").exists()
    assert "No machine of the fleet has a price" in Path("plan.html").read_text()


def test_infeasible_plan_is_shown_before_the_error(planner: Oddlot) -> None:
    mask(time=r"\d+\.\d s\b", cost=r"\$\d+\.\d+(?= \()")
    late = "--deadline 0.000001 --out plan.toml --html plan.html"
    answer = planner.rejects("no_plan", *PLAN, "--machines", "fleet.toml", *late.split(), exit_code=3)
    assert "misses the deadline" in answer.out
    assert not Path("plan.toml").exists()
    assert "no plan reaches" in Path("plan.html").read_text()
    answer = planner.rejects("no_plan", *PLAN, "--budget", "0.000001", "--json", exit_code=3)
    assert json.loads(answer.out)["best"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "fields"),
    [
        ("--until epochs>=3", "goal_without_metric", {"flag": "--until epochs>=3"}),
        ("--until accurcy>=0.9", "unknown_name", {"nearest": "accuracy"}),
        ("--deadline 0", "invalid_value", {"flag": "--deadline"}),
        ("--budget -1", "invalid_value", {"flag": "--budget"}),
        ("--share 1", "invalid_value", {"flag": "--share"}),
        ("--rehearsals -1", "invalid_value", {"flag": "--rehearsals"}),
        ("--minimize money", "invalid_value", {"flag": "--minimize"}),
        ("--groups 1,x", "invalid_value", {"flag": "--groups"}),
        ("--groups 0", "invalid_value", {"flag": "--groups"}),
        ("--groups 1,50", "too_few_workers", {"k": 50, "workers": 4}),
        ("--batch-sizes ,", "invalid_value", {"flag": "--batch-sizes"}),
        ("--batch-sizes 1000", "too_few_samples", {"given": 1000}),
        ("--codecs plain,bf17", "unknown_name", {"kind": "codec", "nearest": "bf16"}),
        ("--strategy gossip", "not_predictable", {"strategy": "Gossip"}),
        ("--strategy gossip --groups 2", "not_for_groups", {"inner": "Gossip"}),
        ("--set engine.workers=3", "not_simulated", {"name": "engine.workers"}),
        ("--out fleet.toml", "not_a_plan", {"path": "fleet.toml"}),
        ("--out nowhere/plan.toml", "unwritable_file", {"path": "nowhere/plan.toml"}),
        ("--html plan.pdf", "not_html", {"path": "plan.pdf"}),
        ("--svg plan.png", "not_svg", {"path": "plan.png"}),
        ("--svg fleet.toml", "not_a_plot", {"path": "fleet.toml"}),
        ("--machines job.toml", "other_kind_of_file", {"kind": "job"}),
    ],
    ids=str,
)
def test_invalid_input_is_rejected(
    planner: Oddlot, arguments: str, code: str, fields: dict[str, Any]
) -> None:
    planner.rejects(code, *PLAN, *shlex.split(arguments), **fields)


def test_job_that_cannot_be_planned_is_rejected(planner: Oddlot) -> None:
    fleet = Path("fleet.toml")
    fleet.write_text(fleet.read_text().replace("dollars_per_hour = 3.6\n", ""))
    planner.rejects("no_prices", *PLAN, "--machines", "fleet.toml", "--minimize", "dollars")
    planner.rejects("no_evaluation_set", "plan", "my_jobs:small", "--until", "loss<=0.1")
    planner.rejects("diverges", *PLAN, "--lr", "1e30", exit_code=3)


def test_tasks_in_flight_are_not_planned(planner: Oddlot) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        answer = planner(*PLAN, "--set", "engine.in_flight=2", "--rehearsals", "0")
    transcribe(answer.err.splitlines()[0])


ENDLESS = ("--set", "workload.lr=1e-9", "--share", "0.5", "--json", "--out", "plan.toml")
"""Options of a plan that does not reach its goal."""


def test_ctrl_c_prints_what_was_found(planner: Oddlot) -> None:
    command = [sys.executable, "-m", "oddlot", *PLAN, *ENDLESS, "--set", "workload.metric=endless"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("comparing" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 128 + signal.SIGINT, err
    assert json.loads(out)["best"] is None
    transcribe(err.splitlines()[-1])


def test_second_ctrl_c_ends_the_command(planner: Oddlot) -> None:
    answer = planner(*PLAN, *ENDLESS, "--set", "workload.metric=killed")
    assert answer.code == 128 + signal.SIGINT
    assert answer.err.endswith("killed\n")
    assert not answer.out


def test_sigterm_in_a_rehearsal_writes_the_best_option(
    planner: Oddlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal = rehearsals.rehearse

    def stopped(*arguments: Any) -> Rehearsal:
        os.kill(os.getpid(), signal.SIGTERM)
        return found if (found := done.pop()) else rehearsal(*arguments)

    done: list[Any] = [None, None, Rehearsal(0.2, 0.1, 0.2, 0.1)]
    monkeypatch.setattr(plan_search, "rehearse", stopped)
    answer = planner(*PLAN, "--out", "plan.toml", "--rehearsals", "4")
    assert answer.code == 128 + signal.SIGTERM
    assert read_plan("plan.toml").prediction.seconds == (0.2, 0.2, 0.2)
