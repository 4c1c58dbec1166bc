"""The command line as a user meets it: what is printed where, exit codes, run folders."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oddlot import __version__
from oddlot.engines import nursery
from oddlot.engines.nursery import Nursery
from oddlot.machines.tables import settings_of
from oddlot.settings import JobFile
from oddlot.strategies import BY_NAME, WRAPPERS
from oddlot.tasks import TASKS
from tests.command import Oddlot
from tests.processes import ROOT

KEYS = {
    *("accuracy", "loss", "seconds", "versions", "samples_assigned", "samples_merged", "samples_wasted"),
    *("bytes_up", "bytes_down", "dollars", "run_dir"),
}
# --- training ----------------------------------------------------------------------------------


def test_a_run_and_its_continuation(oddlot: Oddlot) -> None:
    """Two runs get a folder each; --resume goes on with the newest one, and its books are exact."""
    first = oddlot.json("train", "digits", "--until", "epochs>=1")
    second = oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1")
    assert first.keys() >= KEYS
    assert [first["run_dir"], second["run_dir"]] == ["runs/digits-1", "runs/digits-2"]
    assert first["samples_merged"] == 1437
    files = sorted(path.name for path in Path("runs/digits-2").iterdir())
    assert files == ["checkpoints", "lock", "model.safetensors", "records.jsonl", "run.json", "summary.json"]
    again = oddlot("train", "digits", "--resume")
    assert again.out.endswith("  no version was made before epochs>=1: --until says how far to go\n")
    resumed = oddlot("train", "digits", "--until", "epochs>=3", "--resume")
    assert resumed.code == 0
    assert "nothing was left" not in resumed.out
    assert resumed.out.startswith("digits with synchronous in runs/digits-2\n")
    shown = re.findall(r"version (\d+) ", resumed.out)
    assert all(int(version) >= second["versions"] for version in shown), "what it had done counts"
    assert "ended    epochs>=3, after 3.0 epochs, " in resumed.out
    assert re.search(r"samples  [\d,]+ assigned, 4,311 used, ", resumed.out)
    assert json.loads(Path("runs/digits-2/summary.json").read_text())["samples_merged"] == 3 * 1437


def test_a_run_that_goes_on_keeps_the_settings_that_are_not_said_anew(oddlot: Oddlot) -> None:
    begun = ("--strategy", "fastest_k", "--set", "strategy.k=1", "--until", "epochs>=1", "--seed", "4")
    assert oddlot("train", "digits", *begun).code == 0
    assert oddlot.json("train", "digits", "--resume", "--until", "epochs>=2")["epochs"] == 2
    other = oddlot("train", "digits", "--resume", "--set", "strategy.k=2")
    assert other.code == 2
    assert "strategy: FastestK(k=1, samples=None) in the run, FastestK(k=2, samples=None) now" in other.err


def test_a_simulated_job_file_goes_on_with_its_own_runs(oddlot: Oddlot) -> None:
    Path("job.toml").write_text('task = "digits"\nuntil = "epochs>=1"\n')
    simulate = ("simulate", "job.toml", "--machines", "fleet.toml")
    oddlot.json("train", "job.toml")
    answer = oddlot(*simulate, "--resume")
    assert "there is no run runs/job-simulated-N to resume" in answer.err
    oddlot.json(*simulate)
    assert oddlot.json(*simulate, "--resume", "--until", "epochs>=2")["run_dir"] == "runs/job-simulated-1"
    assert oddlot.json(*simulate, "--resume")["ended"] == "epochs>=2", (
        "it keeps what it was told the last time"
    )


def test_folders_are_left_as_they_were_where_nothing_begins(oddlot: Oddlot) -> None:
    Path("mine").mkdir()
    assert oddlot("train", "digits", "--out", "mine", "--until", "bogus>=3").code == 2
    assert Path("mine").is_dir(), "it is the user's"
    first = oddlot.json("train", "digits", "--until", "epochs>=1")
    assert oddlot("train", "digits", "--until", "bogus>=3").code == 2
    assert [path.name for path in Path("runs").iterdir()] == ["digits-1"]
    Path("runs/digits-7").mkdir()
    assert oddlot.json("train", "digits", "--resume")["run_dir"] == first["run_dir"], (
        "the newest that has begun"
    )


def test_runs_that_cannot_be_made_are_told(oddlot: Oddlot) -> None:
    Path("runs").symlink_to("nowhere/at/all")
    answer = oddlot("train", "digits")
    assert (answer.code, "cannot use runs/digits-1 as the run's folder" in answer.err) == (2, True)
    Path("runs").unlink()
    Path("runs").write_text("a file")
    answer = oddlot("train", "digits")
    assert (answer.code, "cannot use runs/digits-1 as the run's folder" in answer.err) == (2, True)


def test_a_job_file_s_run_goes_on_as_it_was_begun(oddlot: Oddlot) -> None:
    """What was said beside the file holds too, and the file may have changed."""
    Path("job.toml").write_text('task = "digits"\nseed = 5\nworkers = 1\nuntil = "epochs>=1"\n')
    begun = ("--strategy", "asynchronous", "--seed", "0", "--set", "job.batch=64", "--out", "run")
    assert oddlot("train", "job.toml", *begun).code == 0
    Path("job.toml").write_text('task = "digits"\nseed = 5\nworkers = 1\nuntil = "epochs>=2"\n')
    resumed = oddlot.json("train", "job.toml", "--resume", "--out", "run")
    assert resumed["ended"] == "epochs>=2"
    assert resumed["samples_merged"] == 2 * 1437


def test_the_command_that_goes_on_says_a_seed_of_0(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    from oddlot.asked import Asked

    flags = {"strategy": None, "workers": None, "until": None, "seed": 0, "out": "run"}
    asked = Asked("train job.toml", "job.toml", flags, [], False, False, False, False)
    assert asked.again("run") == "oddlot train job.toml --seed 0 --resume --out run"


def test_digits_are_learnt_on_local_workers(oddlot: Oddlot) -> None:
    summary = oddlot.json("train", "digits", "--out", "elsewhere")
    assert summary["accuracy"] >= 0.97
    assert summary["run_dir"] == "elsewhere"
    assert summary["ended"] == "epochs>=30"


def test_a_job_file_with_a_task_of_the_user_s(oddlot: Oddlot) -> None:
    answer = oddlot("train", "job.toml", "--json", "--set", "checkpoint_every=1 seconds")
    assert answer.code == 0, answer.err
    summary = json.loads(answer.out)
    assert summary["run_dir"] == "runs/job-1"
    assert summary["epochs"] == 2
    assert summary["accuracy"] is None
    assert "the job's own words" in answer.err
    assert "job with fastest_k in runs/job-1" in answer.err


def test_a_number_that_json_has_not_is_null(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    from oddlot.observe import Tally

    def summary(tally: Tally) -> dict[str, Any]:
        return before(tally) | {"loss": float("nan"), "metrics": {"loss": float("inf")}}

    before = Tally.summary
    monkeypatch.setattr(Tally, "summary", summary)
    answer = oddlot.json("simulate", "job.toml", "--machines", "fleet.toml")
    assert answer["loss"] is None
    assert answer["metrics"] == {"loss": None}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_saves_and_says_how_to_go_on(oddlot: Oddlot, number: signal.Signals, code: int) -> None:
    command = ["train", "digits", "--until", "epochs>=1000", "--seed", "3"]
    process = subprocess.Popen(
        [sys.executable, "-m", "oddlot", *command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert any("accuracy" in line for line in process.stderr), "the first evaluation has come"
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code
    summary = json.loads(out)
    assert summary["ended"] == "interrupted"
    assert "stopped; saved in runs/digits-1. To go on:" in err
    again = "oddlot train digits --until 'epochs>=1000' --seed 3 --resume --out runs/digits-1"
    assert err.splitlines()[-1].strip() == again
    until = f"versions>={summary['versions'] + 1}"
    resumed = oddlot.json("train", "digits", "--until", until, "--seed", "3", "--resume")
    assert resumed["versions"] == summary["versions"] + 1


ENDLESS = """
import signal
import sys

from tests.fits import a_job, rows


def measures(outputs, targets):
    print("measuring", file=sys.stderr, flush=True)
    signal.pause()


def job():
    return a_job(evaluation=rows(), metrics={"endless": measures})
"""


def test_a_second_ctrl_c_says_what_there_is(oddlot: Oddlot) -> None:
    Path("endless.py").write_text(ENDLESS)
    command = ["train", "endless:job", "--until", "epochs>=1e6", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "oddlot", *command, "--set", "evaluate_every=1000000 epochs"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stderr is not None
    for word in ("with synchronous in", "measuring"):
        assert any(word in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "killed; what was saved before is in runs/job-1. To go on:\n  oddlot train endless:job " in err


def test_ctrl_c_before_anything_has_begun(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(JobFile, "read", interrupted)
    answer = oddlot("train", "digits")
    assert (answer.code, answer.err) == (130, "stopped; nothing was saved\n")


# --- simulating --------------------------------------------------------------------------------


def test_a_simulation_is_the_same_every_time(oddlot: Oddlot) -> None:
    command = [
        "simulate",
        "digits",
        "--machines",
        "fleet.toml",
        "--strategy",
        "fastest_k",
        "--until",
        "epochs>=2",
    ]
    first, second = oddlot.json(*command), oddlot.json(*command)
    assert first.pop("run_dir") == "runs/digits-simulated-1"
    assert second.pop("run_dir") == "runs/digits-simulated-2"
    assert first == second
    assert first["dollars"] == pytest.approx(3 * 3.6 * first["seconds"] / 3600)
    assert first["samples_wasted"] > 0
    assert oddlot.json(*command, "--seed", "1")["seconds"] != first["seconds"]


def test_no_run_changes_its_clock(oddlot: Oddlot) -> None:
    """Real and virtual dollars are never added up."""
    simulated = ["simulate", "digits", "--machines", "fleet.toml", "--until", "epochs>=1", "--out", "run"]
    oddlot.json(*simulated)
    answer = oddlot("train", "digits", "--out", "run", "--resume")
    told = "oddlot: run is a run of `oddlot simulate`, on another clock: go on with that, or choose another folder"
    assert (answer.code, answer.err) == (2, f"{told}\n")
    assert oddlot.json(*simulated, "--until", "epochs>=2", "--resume")["epochs"] == 2


def test_a_simulation_says_time_cost_and_waste(oddlot: Oddlot) -> None:
    answer = oddlot("simulate", "digits", "--machines", "fleet.toml", "--until", "epochs>=1")
    assert answer.code == 0
    assert not answer.err
    for words in ("accuracy 0.", "on the fleet's clock", "cost     $0.0", " used, 0 wasted (0.0 %)"):
        assert words in answer.out
    written = next(line for line in answer.out.splitlines() if line.startswith("  written"))
    assert written.endswith(": model.safetensors, summary.json, records.jsonl, checkpoints"), (
        "whole, to be copied"
    )


# --- what there is -----------------------------------------------------------------------------


def test_tasks_and_strategies_are_listed_with_their_settings(oddlot: Oddlot) -> None:
    tasks, strategies = oddlot("tasks"), oddlot("strategies")
    assert all(f"{name}\n" in tasks.out for name in TASKS)
    assert "    task_options.hidden = 64\n" in tasks.out
    for name, kind in {**BY_NAME, **WRAPPERS}.items():
        assert f"{name}\n    " in strategies.out
        assert all(f"strategy.{setting}" in strategies.out for setting in settings_of(kind))
    assert strategies.out.count("    Paper") == len(BY_NAME) + len(WRAPPERS)
    assert "    strategy.server.lr = 1.0\n" in strategies.out
    assert "    #   error\n    #     a = ... (needed)   # where the metric would end" in strategies.out


def test_one_strategy_may_be_asked_for(oddlot: Oddlot) -> None:
    answer = oddlot("strategies", "deadline")
    assert answer.out.startswith("deadline\n    As the strategy inside")
    assert "fastest_k" not in answer.out
    unknown = oddlot("strategies", "deadlin")
    assert unknown.code == 2
    assert "unknown strategy `deadlin`: did you mean `deadline`?" in unknown.err


def test_the_version_and_the_help(oddlot: Oddlot) -> None:
    assert oddlot("--version").out == f"{__version__}\n"
    for arguments in (["--help"], ["train", "--help"], ["simulate", "--help"]):
        answer = oddlot(*arguments)
        assert answer.code == 0
        for words in ("0 done", "2 something", "3 the", "130"):
            assert words in " ".join(answer.out.split())


def test_help_needs_nothing_heavy() -> None:
    program = "import sys, oddlot.cli; sys.exit(bool({'torch', 'numpy', 'pydantic', 'rich.live'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_fork_server_that_was_started_in_vain_is_gone(
    oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports PyTorch while the settings are still read."""
    started = list[Nursery]()

    def begun() -> Nursery:
        started.append(Nursery())
        return started[-1]

    monkeypatch.setattr(nursery, "Nursery", begun)
    assert oddlot("train", "digitz").code == 2
    assert [server.process.returncode for server in started] == [-signal.SIGKILL]
    assert oddlot("train", "digits", "--workers", "1", "--until", "versions>=1").code == 0
    assert len(started) == 2
    assert started[-1].process.returncode is not None, "the run has used it, and ended it"
