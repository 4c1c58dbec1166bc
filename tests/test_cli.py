"""The command line as a user meets it: what is printed where, exit codes, run folders."""

import json
import os
import re
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from oddlot import __version__
from oddlot.cli import main
from oddlot.machines.tables import settings_of
from oddlot.settings import JobFile
from oddlot.strategies import BY_NAME
from oddlot.tasks import TASKS
from tests.processes import ROOT

KEYS = {
    *("accuracy", "loss", "seconds", "versions", "samples_merged", "samples_wasted"),
    *("bytes_up", "bytes_down", "dollars", "run_dir"),
}
FLEET = """\
[[machines]]
name = "spot"
count = 3
seconds_per_sample = 0.01
delay = { kind = "lognormal", cv = 0.5 }
link = { megabits_per_second = 100, latency_milliseconds = 20 }
dollars_per_hour = 3.6
"""
JOB = """\
task = "my_tasks:small"
until = "epochs>=2"
workers = 1

[strategy]
name = "fastest_k"
k = 1
"""
MY_TASKS = """\
import oddlot, torch
from torch import nn

def small(until="epochs>=1", loss="fine"):
    print("the job's own words")
    x = torch.arange(32.0).reshape(16, 2) / 32
    losses = {"fine": nn.functional.mse_loss, "broken": broken, "unsound": unsound}
    return oddlot.Job(lambda: nn.Linear(2, 1), (x, x[:, :1]), loss=losses[loss], batch=4, until=until, name="small")

def broken(outputs, targets):
    raise ValueError("a fault in the user's loss")

def unsound(outputs, targets):
    return outputs.mean() * torch.nan
"""


@dataclass
class Answer:
    code: int
    out: str
    err: str


class Oddlot:
    """Runs the command line in this process: PyTorch need not be imported again."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str) -> Answer:
        self.monkeypatch.setattr(sys, "argv", ["oddlot", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = self.capsys.readouterr()
        return Answer(int(end.value.code or 0), out, err)

    def json(self, *arguments: str) -> dict[str, Any]:
        answer = self(*arguments, "--json", "--quiet")
        assert answer.code == 0, answer.err
        assert answer.out.count("\n") == 1
        return json.loads(answer.out)  # type: ignore[no-any-return]


@pytest.fixture
def oddlot(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Oddlot:
    """The command line in an empty folder with a fleet, a job file and a module of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.delitem(sys.modules, "my_tasks", raising=False)
    monkeypatch.delenv("ODDLOT_DATA", raising=False)
    for name, text in {"fleet.toml": FLEET, "job.toml": JOB, "my_tasks.py": MY_TASKS}.items():
        (tmp_path / name).write_text(text)
    return Oddlot(capsys, monkeypatch)


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
    assert again.out.endswith("  nothing was left to do: --until says how much further to go\n")
    resumed = oddlot("train", "digits", "--until", "epochs>=3", "--resume")
    assert resumed.code == 0
    assert "nothing was left" not in resumed.out
    assert resumed.out.startswith("digits with synchronous in runs/digits-2\n")
    shown = re.findall(r"version (\d+) ", resumed.out)
    assert all(int(version) >= second["versions"] for version in shown), "what it had done counts"
    assert "ended    epochs>=3, after 3.0 epochs, " in resumed.out
    assert "samples  4,311 used, " in resumed.out
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


# --- what a run's folder tells -----------------------------------------------------------------


def test_a_run_is_reported_and_replayed(oddlot: Oddlot) -> None:
    ended = oddlot.json(
        "simulate", "digits", "--machines", "fleet.toml", "--until", "epochs>=1", "--out", "run"
    )
    told = oddlot("report", "run")
    assert told.code == 0
    assert told.out.startswith("digits with synchronous: accuracy 0.")
    assert "on the fleet's clock" in told.out
    proof = "exactly once: every one of the 1,437 positions of epoch 0 is in one merged update"
    assert told.out.endswith(f"  proof    {proof}\n")
    figures = json.loads(oddlot("report", "run", "--json").out)
    assert {name: figures[name] for name in ended} == ended, "every figure is a function of the log"
    assert (figures["exactly_once"], figures["epochs_whole"]) == (True, 1)
    again = oddlot("replay", "run")
    assert (again.code, again.out) == (0, f"run: all {_records(Path('run'))} records are decided the same\n")


def _records(run: Path) -> int:
    return (run / "records.jsonl").read_bytes().count(b"\n") - 1


def test_a_difference_and_what_counts_twice_end_with_exit_code_1(oddlot: Oddlot) -> None:
    oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1", "--out", "run")
    log = Path("run/records.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    steps = [number for number, line in enumerate(lines) if '"is":"Step"' in line]
    doubled = [*lines[: steps[0] + 1], lines[steps[0]], *lines[steps[0] + 1 :]]
    del doubled[steps[-1] + 1]  # as many versions as the run has said
    log.write_text("".join(doubled))
    answer = oddlot("replay", "run")
    assert answer.code == 1
    assert f"then line {steps[0] + 2} of the log differs. It came about like this:" in answer.err
    answer = oddlot("report", "run")
    assert answer.code == 1
    assert "proof    NOT exactly once: positions 0 to 31 of epoch 0 are in w1:1 and in w1:1" in answer.out


def test_a_log_that_is_not_whole_is_told(oddlot: Oddlot) -> None:
    oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1", "--out", "run")
    log = Path("run/records.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:20]))
    for command in ("report", "replay"):
        answer = oddlot(command, "run")
        assert answer.code == 2
        told = (
            f"records.jsonl has 19 of the {len(lines) - 1} records of the run: restore the file from a copy"
        )
        assert told in answer.err
    starts = [number for number, line in enumerate(lines) if '"is":"Start"' in line]
    for broken in (
        [*lines[: starts[3]], lines[-1], *lines[starts[3] + 1 :]],
        [lines[0].replace('"size":1437', '"size":"a"'), *lines[1:]],
    ):
        log.write_text("".join(broken))
        answer = oddlot("report", "run")
        assert answer.code == 2
        assert "records.jsonl is damaged" in answer.err
    log.write_text("".join([lines[0].replace('"format":1', '"format":9'), *lines[1:]]))
    assert "has format 9, this version of oddlot reads 1" in oddlot("report", "run").err


def test_a_run_under_way_is_reported_without_what_it_has_not_written(oddlot: Oddlot) -> None:
    oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1", "--out", "run")
    for name in ("summary.json", "model.safetensors"):
        Path("run", name).unlink()
    answer = oddlot("report", "run")
    assert "  ended    not ended, after 1.0 epochs" in answer.out
    assert "  written  run: records.jsonl, checkpoints\n" in answer.out


@pytest.mark.parametrize("command", ["report", "replay"])
def test_what_is_no_run_is_told(oddlot: Oddlot, command: str) -> None:
    answer = oddlot(command, "nothing")
    assert (answer.code, answer.err) == (2, "oddlot: there is no run in nothing\n")


# --- what there is -----------------------------------------------------------------------------


def test_tasks_and_strategies_are_listed_with_their_settings(oddlot: Oddlot) -> None:
    tasks, strategies = oddlot("tasks"), oddlot("strategies")
    assert all(f"{name}\n" in tasks.out for name in TASKS)
    assert "    task_options.hidden = 64\n" in tasks.out
    for name, kind in BY_NAME.items():
        assert f"{name}\n    " in strategies.out
        assert all(f"strategy.{setting}" in strategies.out for setting in settings_of(kind))
    assert strategies.out.count("    Paper") == len(BY_NAME)
    assert "    strategy.server.lr = 1.0\n" in strategies.out


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


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train digitz", "oddlot: unknown task `digitz`: did you mean `digits`?"),
        (
            "train digits --strategy fastestk",
            "--strategy fastestk: unknown strategy `fastestk`: did you mean `fastest_k`",
        ),
        (
            "train digits --set strategy.sample=3",
            "--set strategy.sample=3: unknown key `sample` of Synchronous: did you mean `samples`",
        ),
        ("train digits --workers 0", "--workers 0: `workers` is 0: it must be at least 1"),
        ("train digits --workers two", "Invalid value for '--workers'"),
        (
            "train digits --workers 9999",
            "--workers 9999: workers = 9999 is more than the samples: there are 1437",
        ),
        ("train digits --until accurcy>=1", "--until accurcy>=1: until = 'accurcy>=1': there is no figure"),
        ("train digits --until never", "'never' is not of the form NAME>=NUMBER"),
        (
            "train digits --strategy fastest_k --set strategy.k=3",
            "--set strategy.k=3: k = 3 results of 2 workers: lower k or add workers",
        ),
        (
            "train digits --set job.batch=2000",
            "--set job.batch=2000: batch = 2000 is more than the samples: ",
        ),
        (
            "train digits --set evaluate_every=often",
            "--set evaluate_every=often: evaluate_every = 'often' is",
        ),
        ("train digits --seed -1", "--seed -1: `seed` is -1: it must be a whole number from 0 to"),
        (
            "train digits --workers 2 --set workers=1",
            "--set workers=1: --workers 2 says it already; leave one",
        ),
        (
            "train digits --strategy fastest_k --set strategy={name='local_sgd'}",
            "--set strategy={name='local_sgd'}: --strategy fastest_k says it already; leave one",
        ),
        (
            "train digits --set seed=1 --set seed=2",
            "--set seed=2: --set seed=1 says it already; leave one",
        ),
        (
            "train digits --set job={batch=8} --set job.batch=9",
            "--set job.batch=9: --set job={batch=8} says it already; leave one",
        ),
        ("train digits --set task=mnist", "--set task=mnist: the task digits says it already"),
        ("train digits --until dollars>=1", "until = 'dollars>=1' never comes: no machine has a price"),
        ("train digits --set threads=9999", "--set threads=9999: threads = 9999 for each worker"),
        ("train os:getcwd", "the task os:getcwd must return an oddlot.Job, not str"),
        ("train digits --resume", "there is no run runs/digits-N to resume: name its folder with --out"),
        ("train digits --resume --out here", "there is no run to resume in here"),
        ("train digits --out .", "is not empty: resume=True (--resume) goes on"),
        ("train digits --out . --force", "holds no run, so it is not thrown away"),
        ("train digits --out fleet.toml", "the run's folder: Not a directory"),
        ("train mnist", "No folder was named to look in"),
        ("train absent.toml", "absent.toml cannot be read: No such file"),
        ("train my_task:small", "there is no module my_task"),
        ("train fleet.toml", "fleet.toml:1: unknown key `machines`"),
        ("train", "Missing argument"),
        ("tran digits", "No such command 'tran'. Did you mean 'train'?"),
        ("simulate digits", "Missing option '--machines'"),
        ("simulate digits --machines absent.toml", "absent.toml cannot be read: No such file"),
        ("simulate digits --machines job.toml", "job.toml:1: unknown key `task`"),
        (
            "simulate digits --machines fleet.toml --set workers=3",
            "--set workers=3: fleet.toml says what machines there are",
        ),
    ],
)
def test_what_cannot_be_done_is_told_with_exit_code_2(oddlot: Oddlot, arguments: str, sentence: str) -> None:
    answer = oddlot(*arguments.split(), *(["--json"] if "digits" in arguments else []))
    assert answer.code == 2
    assert sentence in " ".join(answer.err.split())
    assert not answer.out
    assert "Traceback" not in answer.err


def test_another_job_s_checkpoint_is_refused_with_the_difference(oddlot: Oddlot) -> None:
    simulate = ["simulate", "digits", "--machines", "fleet.toml", "--until", "versions>=2", "--out", "run"]
    oddlot.json(*simulate)
    answer = oddlot(*simulate, "--resume", "--seed", "5")
    assert answer.code == 2
    assert "seed: 0 in the run, 5 now" in answer.err
    assert oddlot.json(*simulate, "--force", "--seed", "5")["versions"] == 2


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("broken", "ValueError: a fault in the user's loss"),
        ("unsound", "not finite in weight"),
        ("absent", "KeyError: 'absent'"),
    ],
)
def test_a_failing_job_ends_with_exit_code_3(oddlot: Oddlot, loss: str, words: str) -> None:
    answer = oddlot("train", "my_tasks:small", "--set", f"task_options.loss={loss}", "--json", "--quiet")
    assert answer.code == 3
    assert words in answer.err
    assert not answer.out


def test_a_bug_is_a_traceback_and_exit_code_1(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> str:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("oddlot.settings.JobFile.strategy", broken)
    monkeypatch.setattr(sys, "argv", ["oddlot", "train", "digits"])
    with pytest.raises(RuntimeError, match="a bug of ours"):
        main()
