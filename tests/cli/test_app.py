"""The command line from a user's view: output, exit codes and run folders."""

import json
import re
import shlex
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import typer

from oddlot import __version__
from oddlot.cli import app as cli, completion as completing
from oddlot.config.job_file import JobFile
from oddlot.config.job_tables import TABLES
from oddlot.core.support.validation import settings_of
from oddlot.engines.local import fork_client
from oddlot.engines.local.fork_client import ForkClient
from oddlot.history.metrics import Tally
from oddlot.history.run_settings import how_to_resume, provenance
from oddlot.strategies.registry import BY_NAME, WRAPPERS
from oddlot.workloads.registry import WORKLOADS, options_of
from tests.command import Oddlot
from tests.transcripts import mask, transcribe

KEYS = {
    *("accuracy", "loss", "seconds", "versions", "samples_assigned", "samples_merged", "samples_wasted"),
    *("bytes_up", "bytes_down", "dollars", "run_dir"),
}
ON_FLEET = ("--machines", "fleet.toml")
SMALL = ("simulate", "my_jobs:small", *ON_FLEET)


# --- training ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("fork_server")
def test_resume_latest_continues_the_newest_run(oddlot: Oddlot) -> None:
    """Each run has its own folder. --resume latest resumes the newest run, and its sample accounting is exact."""
    first = oddlot.json("train", "digits", "--until", "epochs>=1")
    second = oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1")
    assert first.keys() >= KEYS
    assert [first["run_dir"], second["run_dir"]] == ["runs/digits-1", "runs/digits-2"]
    assert first["samples_merged"] == 1437
    files = sorted(path.name for path in Path("runs/digits-2").iterdir())
    assert files == ["checkpoints", "lock", "model.safetensors", "records.jsonl", "run.json", "summary.json"]
    nothing_done = oddlot("train", "digits", "--resume", "latest").out.splitlines()[-1]
    transcribe(nothing_done)
    resumed = oddlot("train", "digits", "--until", "epochs>=3", "--resume", "latest")
    assert resumed.code == 0
    assert nothing_done not in resumed.out
    summary = json.loads(Path("runs/digits-2/summary.json").read_text())
    assert (summary["samples_merged"], summary["ended"]) == (3 * 1437, "epochs>=3")
    path = "runs/digits-simulated-N"
    oddlot.rejects("no_run", "simulate", "digits", *ON_FLEET, "--resume", "latest", path=path)


def test_resumed_run_keeps_settings_that_are_not_passed_again(oddlot: Oddlot) -> None:
    begun = ("--strategy", "fastest_k", "--set", "strategy.k=1", "--until", "epochs>=1", "--seed", "4")
    run = oddlot.json(*SMALL, *begun)["run_dir"]
    assert oddlot.json(*SMALL, "--resume", "latest", "--until", "epochs>=2")["epochs"] == 2
    for flags, different in {
        ("--set", "strategy.k=2"): {"strategy": tuple(f"FastestK(k={k}, samples=None)" for k in (1, 2))},
        ("--seed", "5"): {"seed": (4, 5)},
    }.items():
        oddlot.rejects("other_job", *SMALL, "--resume", "latest", *flags, different=different)
    assert oddlot.json(*SMALL, "--out", run, "--force", "--seed", "5")["epochs"] == 1


def test_resumed_job_file_run_keeps_flags_of_its_first_start(oddlot: Oddlot) -> None:
    """Flags of the first start still hold, and the job file may have changed."""
    simulate = ("simulate", "job.toml", *ON_FLEET)
    Path("job.toml").write_text('workload = "my_jobs:small"\n[run]\nseed = 5\nuntil = "epochs>=1"\n')
    oddlot.json(*simulate, "--strategy", "asynchronous", "--seed", "0", "--set", "job.batch_size=8")
    Path("job.toml").write_text('workload = "my_jobs:small"\n[run]\nseed = 5\nuntil = "epochs>=2"\n')
    resumed = oddlot.json(*simulate, "--resume", "latest")
    assert (resumed["run_dir"], resumed["ended"]) == ("runs/job-simulated-1", "epochs>=2")
    assert resumed["samples_merged"] == 2 * 16
    oddlot.json(*simulate, "--resume", "latest", "--until", "epochs>=3")
    last = oddlot.json(*simulate, "--resume", "latest")["ended"]
    assert last == "epochs>=3", "it keeps what it was told the last time"


def test_new_segment_continues_with_other_settings(oddlot: Oddlot) -> None:
    """Later commands keep the settings of the newest segment. The report lists the segments."""
    again = (*SMALL, "--resume", "latest")
    oddlot.json(
        *SMALL, "--strategy", "fastest_k", "--set", "strategy.k=1", "--until", "epochs>=1", "--out", "run"
    )
    changed = ("--strategy", "groups", "--lr", "0.02", "--batch-size", "2", "--new-segment")
    oddlot.json(*again, *changed, "--until", "epochs>=2", "--out", "run")
    assert oddlot.json(*again, "--until", "epochs>=3", "--out", "run")["epochs"] == 3
    oddlot.json(*again, "--strategy", "asynchronous", "--new-segment", "--until", "epochs>=4", "--out", "run")
    found = json.loads(oddlot("report", "run", "--json").out)
    assert [one["batch_size"] for one in found["settings"]["segments"]] == [4, 2, 2]
    assert found["exactly_once"]
    transcribe("\n".join(oddlot("report", "run").out.splitlines()[-3:]))
    assert oddlot("replay", "run").code == 0
    oddlot.rejects("missing_setting", *SMALL, "--new-segment", name="resume")
    oddlot.rejects("not_with_seeds", *SMALL, "--new-segment", "--seeds", "2", flag="--new-segment")


def test_other_rate_or_batch_size_needs_a_new_segment(oddlot: Oddlot) -> None:
    oddlot.json(*SMALL, "--until", "epochs>=1", "--out", "run")
    again = (*SMALL, "--resume", "latest", "--out", "run", "--until", "epochs>=2")
    changed = ("--set", "job.optimizer.lr=0.02", "--batch-size", "2")
    answer = oddlot.rejects("other_job", *again, *changed, path="run")
    assert answer.error is not None
    assert answer.error.fields["different"].keys() == {"batch_size", "optimizer"}
    oddlot.json(*again, *changed, "--new-segment")
    segments = json.loads(oddlot("report", "run", "--json").out)["settings"]["segments"]
    assert [one["batch_size"] for one in segments] == [4, 2]
    assert "lr=0.02" in segments[1]["optimizer"]


def test_new_segment_replaces_flags_of_a_job_file_run(oddlot: Oddlot) -> None:
    """Flags of the earlier strategy do not apply to the new one."""
    Path("job.toml").write_text('workload = "my_jobs:small"\n[run]\nuntil = "epochs>=1"\nout = "run"\n')
    simulate = ("simulate", "job.toml", *ON_FLEET)
    oddlot.json(*simulate, "--strategy", "fastest_k", "--set", "strategy.k=1")
    again = (*simulate, "--resume", "latest")
    oddlot.json(*again, "--strategy", "synchronous", "--new-segment", "--until", "epochs>=2")
    assert oddlot.json(*again, "--until", "epochs>=3")["epochs"] == 3
    strategies = [
        one["strategy"] for one in json.loads(oddlot("report", "run", "--json").out)["settings"]["segments"]
    ]
    assert [text.partition("(")[0] for text in strategies] == ["FastestK", "Synchronous"]


def test_lr_epochs_and_device_flags_are_applied(oddlot: Oddlot) -> None:
    """The flags can be passed again when a run is resumed."""
    oddlot.json(*SMALL, "--lr", "0.25", "--epochs", "1", "--device", "cpu", "--out", "run")
    run = json.loads(Path("run/run.json").read_text())
    assert "SGD(lr=0.25, " in run["optimizer"]
    assert run["about"]["settings"]["job"]["device"] == "cpu"
    assert oddlot.json(*SMALL, "--out", "run", "--resume", "latest", "--epochs", "2")["ended"] == "epochs>=2"


def test_run_json_records_date_host_and_command(oddlot: Oddlot) -> None:
    """A resumed run keeps the entries of its first start. Passwords are masked."""
    place = "memory://user:s3cr3t@here/run"
    given = [*SMALL, "--no-keep-shards", "--seed", "3", "--out", "run"]
    oddlot.json(*given)
    started = json.loads(Path("run/run.json").read_text())["started"]
    assert sorted(shlex.split(started.pop("command"))) == sorted(["oddlot", *given])
    assert started.keys() == {"date", "host", "oddlot", "torch", "python"}
    assert abs(datetime.fromisoformat(started["date"]) - datetime.now(UTC)) < timedelta(hours=1)
    oddlot.json(*SMALL, "--out", "run", "--resume", "latest", "--epochs", "2")
    again = json.loads(Path("run/run.json").read_text())["started"]
    assert again.items() >= started.items()
    assert "--epochs 2" not in again["command"]
    assert "s3cr3t" not in provenance({"given": ["train", "digits", "--checkpoints", place]})["command"]


def test_script_is_recorded_without_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = {
        "/home/me/train.py": "python train.py",
        "/x/ipykernel_launcher.py": "notebook",
        "-c": "python",
    }
    for script, command in commands.items():
        monkeypatch.setattr(sys, "argv", [script, "--token", "s3cr3t"])
        assert provenance({})["command"] == command


def test_report_of_a_killed_run_shows_the_resume_command(oddlot: Oddlot) -> None:
    oddlot.json(*SMALL, "--out", "run", "--seed", "3")
    Path("run/summary.json").unlink()
    for command, code in (("report", 0), ("watch", 3)):
        answer = oddlot(command, "run")
        resume = next(line for line in answer.out.splitlines() if line.startswith("  resume "))
        assert answer.code == code
        assert shlex.split(resume)[1:] == ["oddlot", *SMALL, "--resume", "latest", "--out", "run"]
    assert oddlot.json(*shlex.split(resume)[2:])["ended"] == "epochs>=1"
    run = json.loads(Path("run/run.json").read_text())
    for arguments in (["rm", "-rf", "/"], "train; rm", None, [], ["train", 3]):
        made_up = run["about"] | {"command": arguments}
        assert how_to_resume(made_up, "run") == "oddlot.fit(..., out='run', resume=\"latest\")"


def test_file_instead_of_a_run_folder_is_rejected(oddlot: Oddlot) -> None:
    oddlot.json(*SMALL, "--out", "run")
    for command in ("report", "watch", "replay"):
        oddlot.rejects("not_a_folder", command, "run/summary.json", path="run/summary.json")
    oddlot.rejects("not_a_folder", "report", "fleet.toml", path="fleet.toml")


def test_failed_start_leaves_folders_unchanged(oddlot: Oddlot) -> None:
    wrong = (*SMALL, "--until", "bogus>=3")
    Path("mine").mkdir()
    oddlot.rejects("unknown_name", *wrong, "--out", "mine", kind="figure")
    assert Path("mine").is_dir(), "it is the user's"
    first = oddlot.json(*SMALL)
    oddlot.rejects("unknown_name", *wrong, kind="figure")
    assert [path.name for path in Path("runs").iterdir()] == ["small-simulated-1"]
    Path("runs/small-simulated-7").mkdir()
    again = oddlot.json(*SMALL, "--resume", "latest")
    assert again["run_dir"] == first["run_dir"], "the newest that has begun"


def test_unusable_runs_folder_is_rejected(oddlot: Oddlot) -> None:
    runs = Path("runs")
    runs.symlink_to("nowhere/at/all")
    oddlot.rejects("unusable_folder", *SMALL, path="runs/small-simulated-1")
    runs.unlink()
    runs.write_text("a file")
    oddlot.rejects("unusable_folder", *SMALL, path="runs/small-simulated-1")


@pytest.mark.usefixtures("fork_server")
def test_train_digits_reaches_its_accuracy(oddlot: Oddlot) -> None:
    summary = oddlot.json("train", "digits", "--out", "elsewhere")
    assert summary["accuracy"] >= 0.97
    assert summary["run_dir"] == "elsewhere"
    assert summary["ended"] == "epochs>=30"


def test_train_runs_a_job_file_with_a_custom_workload(oddlot: Oddlot) -> None:
    oddlot.starts_early = True
    answer = oddlot("train", "job.toml", "--json", "--set", "run.checkpoint_every=1 seconds")
    assert answer.code == 0, answer.err
    summary = json.loads(answer.out)
    assert (summary["run_dir"], summary["epochs"], summary["accuracy"]) == ("runs/job-1", 2, None)
    assert "the job's own words" in answer.err


def test_nan_and_inf_are_null_in_json(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    before, bad = Tally.summary, {"loss": nan, "metrics": {"loss": inf}}
    monkeypatch.setattr(Tally, "summary", lambda tally: before(tally) | bad)
    answer = oddlot.json(*SMALL)
    assert (answer["loss"], answer["metrics"]) == (None, {"loss": None})


def begun(*arguments: str) -> subprocess.Popen[str]:
    """Start the command line in another process."""
    command = [sys.executable, "-m", "oddlot", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize(
    ("number", "code", "command", "folder"),
    [
        (signal.SIGINT, 130, ["train", "digits"], "runs/digits-1"),
        (signal.SIGTERM, 143, ["simulate", "digits", *ON_FLEET], "runs/digits-simulated-1"),
    ],
    ids=["SIGINT", "SIGTERM"],
)
def test_ctrl_c_saves_and_prints_the_resume_command(
    oddlot: Oddlot, number: signal.Signals, code: int, command: list[str], folder: str
) -> None:
    command += ["--until", "epochs>=1000", "--seed", "0"]
    process = begun(*command, "--json")
    assert process.stderr is not None
    assert any("accuracy" in line for line in process.stderr), "the first evaluation has come"
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code
    summary = json.loads(out)
    assert summary["ended"] == "interrupted"
    *_, message, again = err.splitlines()
    transcribe(message)
    assert shlex.split(again) == ["oddlot", *command, "--resume", "latest", "--out", folder]
    until = f"versions>={summary['versions'] + 1}"
    resumed = oddlot.json(*shlex.split(again)[1:], "--until", until)
    assert resumed["versions"] == summary["versions"] + 1


ENDLESS = """
import dataclasses, select
from my_jobs import small

def measures(outputs, targets):
    while True:
        print("measuring", flush=True)
        select.select([], [], [], 0.1)

def job():
    return dataclasses.replace(small(), eval_data=small().train_data, metrics={"endless": measures})
"""


def test_second_ctrl_c_prints_the_resume_command(oddlot: Oddlot) -> None:
    Path("endless.py").write_text(ENDLESS)
    command = ["simulate", "endless:job", *ON_FLEET, "--until", "epochs>=1e6"]
    process = begun(*command, "--json")
    assert process.stderr is not None
    for _ in range(2):  # the evaluation continues after the first signal
        assert any("measuring" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    *_, message, again = err.splitlines()
    transcribe(message)
    assert shlex.split(again) == ["oddlot", *command, "--resume", "latest", "--out", "runs/job-simulated-1"]


def test_ctrl_c_before_the_start_prints_no_resume_command(
    oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(JobFile, "read", interrupted)
    answer = oddlot("train", "digits")
    assert answer.code == 130
    assert "oddlot" not in answer.err, "there is no run to go on with"
    transcribe(answer.err)


# --- simulating --------------------------------------------------------------------------------


def test_simulation_is_deterministic(oddlot: Oddlot) -> None:
    command = [*SMALL, "--strategy", "fastest_k", "--until", "epochs>=2"]
    first, second = oddlot.json(*command), oddlot.json(*command)
    assert first.pop("run_dir") == "runs/small-simulated-1"
    assert second.pop("run_dir") == "runs/small-simulated-2"
    assert first == second
    assert first["dollars"] == pytest.approx(3 * 3.6 * first["seconds"] / 3600)
    assert first["samples_wasted"] > 0
    assert oddlot.json(*command, "--seed", "1")["seconds"] != first["seconds"]


def test_simulated_run_cannot_resume_with_train(oddlot: Oddlot) -> None:
    """A simulated run cannot resume with `train`, because real and virtual costs are never added."""
    oddlot.json(*SMALL, "--out", "run")
    on_workers = ("train", "my_jobs:small", "--out", "run", "--resume", "latest")
    oddlot.rejects("other_command", *on_workers, path="run", command="simulate")
    assert oddlot.json(*SMALL, "--out", "run", "--until", "epochs>=2", "--resume", "latest")["epochs"] == 2


def test_simulation_prints_time_cost_and_waste(oddlot: Oddlot) -> None:
    answer = oddlot("simulate", "digits", *ON_FLEET, "--until", "epochs>=1")
    assert answer.code == 0
    assert not answer.err
    mask(trained=r"\d\.\d{4}\b", point=r"(?<=, )\$[\d.]+(?= a point)")
    transcribe(answer.out)
    transcribe(oddlot("report", "runs/digits-simulated-1").out)
    names = ("model.safetensors", "summary.json", "records.jsonl", "checkpoints")
    assert any(all(name in line for name in names) for line in answer.out.splitlines()), "to be copied"


# --- lists -------------------------------------------------------------------------------------


def test_workloads_and_strategies_are_listed_with_their_settings(oddlot: Oddlot) -> None:
    tasks, strategies = oddlot("workloads").out, oddlot("strategies").out.split("\n\n")[0]
    transcribe(strategies)
    known = {**BY_NAME, **WRAPPERS}
    assert [line.split()[0] for line in strategies.splitlines()] == [*known], "a line each"
    for name in WORKLOADS:
        assert f"{name}\n    " in tasks
        one = oddlot("workloads", name).out
        assert all(f"workload.{option} = " in text for option in options_of(name) for text in (tasks, one))
    assert "pretrain_epochs: " in oddlot("workloads", "digit_autoencoder").out, "its docstring"
    oddlot.rejects("unknown_name", "workloads", "digit", kind="workload", nearest="digits")
    for name, kind in known.items():
        listed = oddlot("strategies", name).out
        transcribe(listed)
        assert [line for line in listed.splitlines() if line[:1].strip()] == [name]
        assert all(f"strategy.{setting}" in listed for setting in settings_of(kind))
        assert re.search(r"\(\w*\s*(19|20)\d\d\b", listed), "its paper, of this year"
    assert "    strategy.server.lr = 1.0 " in oddlot("strategies", "local_sgd").out
    transcribe(tasks)
    oddlot.rejects("unknown_name", "strategies", "deadlin", kind="strategy", nearest="deadline")


def test_version_and_help_are_printed(oddlot: Oddlot) -> None:
    assert oddlot("--version").out == f"{__version__}\n"
    commands: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    nested = {
        f"{group} {name}": command
        for group, of_group in commands.items()
        for name, command in getattr(of_group, "commands", {}).items()
    }
    for name, command in {**commands, **nested}.items():
        answer = oddlot(*name.split(), "--help")
        assert answer.code == 0
        names = {option.opts[0]: option for option in command.params}
        assert all(name in answer.out for name in names if name.startswith("--"))
        helps = (f"    {name}: {option.help}" for name, option in names.items())
        transcribe("\n".join([f"{name}: {command.help}", *helps]))
    for arguments in (["--help"], ["train", "--help"], ["simulate", "--help"]):
        assert cli.EXIT_CODES in " ".join(oddlot(*arguments).out.split())
    assert all(f"{code} " in cli.EXIT_CODES for code in (0, 1, 2, 3, 130, 143))
    transcribe(cli.EXIT_CODES)


@pytest.mark.parametrize("command", ["", "train", "simulate", "plan", "xmc-generate"])
def test_help_fits_a_narrow_terminal(command: str, oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = oddlot(*command.split(), "--help").out
    monkeypatch.setenv("COLUMNS", "40")
    narrow = oddlot(*command.split(), "--help").out
    assert max(map(len, narrow.splitlines())) <= 40
    assert narrow.split() == wide.split(), "no word is broken"
    assert not re.search(r"<[a-z]|\{|default: \(|x>=", wide)


COMPLETES = "import oddlot.cli.completion as c; c.workloads(''); c.strategies(''); c.settings('codec=')"


@pytest.mark.parametrize("begin", ["import oddlot.cli.app", COMPLETES], ids=["help", "completing"])
def test_help_and_completion_import_no_heavy_packages(begin: str) -> None:
    program = f"{begin}; import sys; sys.exit(bool({{'torch', 'numpy', 'pydantic', 'rich.live'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("oddlot stra", ["strategies"]),
        ("oddlot train di", ["digits", "digit_autoencoder"]),
        ("oddlot strategies v", ["vc_asgd"]),
        ("oddlot simulate digits --strategy f", ["fastest_k", "federated_averaging"]),
        ("oddlot train digits --device cu", ["cuda"]),
        ("oddlot train digits --engine r", ["ray"]),
        ("oddlot train digits --resume l", ["latest"]),
        ("oddlot train digits --set engine.kind=l", ["engine.kind=local"]),
        ("oddlot train digits --set job.opt", ["job.optimizer=", "job.optimizer.lr="]),
        ("oddlot train digits --set run.codec=b", ["run.codec=bf16"]),
        ("oddlot train digits --set strategy=dow", ["strategy=downpour"]),
    ],
)
def test_shell_completes_commands_and_settings(
    oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch, line: str, words: list[str]
) -> None:
    for name, value in {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_ODDLOT_COMPLETE", "complete_bash")
    answer = oddlot()
    assert (answer.code, answer.out.split()) == (0, words)


def test_resume_latest_ignores_runs_of_other_workloads(oddlot: Oddlot) -> None:
    Path("others.py").write_text("from my_jobs import small")
    for workload in ("my_jobs:small", "others:small"):
        oddlot.json("train", workload, "--workers", "1", "--epochs", "1")
    again = oddlot.json("train", "my_jobs:small", "--resume", "latest", "--epochs", "2")
    assert again["run_dir"] == "runs/small-1"
    other = "train", "my_jobs:small", "--resume", "latest", "--out", "runs/small-2"
    oddlot.rejects("other_workload", *other, workload="others:small")


def test_shell_completes_every_setting_of_a_job_file() -> None:
    known = {f"{table}.{key}" for table, keys in TABLES.items() for key in keys if table != "job.optimizer"}
    assert {*completing.keys()} == known | {"job.optimizer.lr", "strategy", "workload"}


def test_usage_message_names_oddlot_when_run_as_a_module() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "oddlot", "simulate"], capture_output=True, text=True, check=False
    )
    assert "Usage: oddlot simulate " in answer.stderr


def test_unused_fork_server_is_killed(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server imports PyTorch while the settings are read."""
    started = list[ForkClient]()

    def begun() -> ForkClient:
        started.append(ForkClient())
        return started[-1]

    monkeypatch.setattr(fork_client, "ForkClient", begun)
    oddlot.starts_early = True
    oddlot.rejects("unknown_name", "train", "digitz", kind="workload")
    assert [server.process.returncode for server in started] == [-signal.SIGKILL]
    assert oddlot("train", "digits", "--workers", "1", "--until", "versions>=1").code == 0
    assert len(started) == 2
    assert started[-1].process.returncode is not None, "the run has used it, and ended it"


def test_simulate_without_machines_uses_the_sample_fleet(oddlot: Oddlot) -> None:
    answer = oddlot("simulate", "digits", "--epochs", "1", "--no-compute", "--json")
    assert (answer.code, json.loads(answer.out)["versions"] > 0) == (0, True)
    assert "sample_fleet.toml" in answer.err
