"""Errors and exit codes of the command line for invalid input."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from oddlot.cli.app import main
from tests.command import Oddlot
from tests.transcripts import mask

INNER = "--strategy backup_tasks --set strategy.inner=fastest_k --set strategy.inner.k=3"


@pytest.mark.parametrize(
    ("arguments", "code", "fields"),
    [
        ("train digitz", "unknown_name", {"kind": "workload", "nearest": "digits"}),
        ("train digits --strategy fastestk", "unknown_name", {"flag": "--strategy fastestk"}),
        ("train digits --workers 0", "invalid_value", {"flag": "--workers 0", "given": 0}),
        ("train digits --workers 9999", "too_few_samples", {"flag": "--workers 9999", "samples": 1437}),
        ("train digits --workers two", "invalid_value", {"flag": "--workers two", "given": "two"}),
        (
            "train digits --engine ray --workers 16-2",
            "invalid_value",
            {"flag": "--workers 16-2", "given": [16, 2]},
        ),
        ("train digits --workers 2-16", "range_of_workers", {"flag": "--workers 2-16", "given": [2, 16]}),
        ("train digits --engine rai", "unknown_name", {"flag": "--engine rai", "kind": "engine"}),
        (
            "train digits --engine ray --set engine.threads=2",
            "setting_of_another_engine",
            {"flag": "--set engine.threads=2", "engine": "ray", "name": "threads"},
        ),
        (
            "train digits --set engine.address=auto",
            "setting_of_another_engine",
            {"flag": "--set engine.address=auto", "engine": "local", "name": "address"},
        ),
        (
            "train digits --engine ray --set engine.kind=local",
            "duplicate_setting",
            {"before": "--engine ray"},
        ),
        ("train digits --until accurcy>=1", "unknown_name", {"kind": "figure", "nearest": "accuracy"}),
        ("train digits --until never", "invalid_goal", {"flag": "--until never"}),
        ("train digits --strategy fastest_k --set strategy.k=3", "too_few_workers", {"k": 3, "workers": 2}),
        (f"train digits {INNER}", "too_few_workers", {"flag": "--set strategy.inner.k=3"}),
        (
            "train digits --set job.batch_size=2000",
            "too_few_samples",
            {"name": "job.batch_size", "given": 2000},
        ),
        ("train digits --seed -1", "invalid_value", {"flag": "--seed -1"}),
        ("train digits --seed x", "invalid_value", {"flag": "--seed x", "must": "a whole number"}),
        ("train digits --epochs 0", "invalid_value", {"flag": "--epochs 0", "given": "0"}),
        ("train digits --lr x", "invalid_value", {"flag": "--lr x", "must": "a number"}),
        ("simulate digits --seeds x", "invalid_value", {"flag": "--seeds x"}),
        ("xmc-generate set --labels 0", "invalid_value", {"flag": "--labels 0"}),
        ("notice x", "invalid_value", {"name": "PID", "given": "x"}),
        ("train digits --workers 2 --set engine.workers=1", "duplicate_setting", {"before": "--workers 2"}),
        (
            "train digits --strategy quorum --set strategy={k=1}",
            "duplicate_setting",
            {"before": "--strategy quorum"},
        ),
        (
            "train digits --set job={batch_size=8} --set job.batch_size=9",
            "duplicate_setting",
            {"flag": "--set job.batch_size=9"},
        ),
        ("train digits --set workload=mnist", "duplicate_setting", {"flag": "--set workload=mnist"}),
        ("train digits --until dollars>=1", "goal_without_price", {"flag": "--until dollars>=1"}),
        ("train digits --workers 1000000000", "too_many_workers", {"flag": "--workers 1000000000"}),
        ("train digits --set engine.threads=9999", "too_many_threads", {"flag": "--set engine.threads=9999"}),
        ("train digits --epochs 1 --until epochs>=1", "duplicate_setting", {"before": "--epochs 1"}),
        ("train digits --lr 0.1 --set job.optimizer.lr=1", "duplicate_setting", {"before": "--lr 0.1"}),
        ("train digits --lr -1", "invalid_value", {"flag": "--lr -1.0"}),
        ("train digits --device gpu", "unknown_device", {"flag": "--device gpu"}),
        ("train digits --resume yes", "invalid_value", {"flag": "--resume yes", "given": "yes"}),
        ("train digits --resume --out here", "invalid_value", {"flag": "--resume --out"}),
        ("train digits --resume auto --force", "resume_and_force", {}),
        ("train digits --resume auto --out .", "not_a_run", {"path": "."}),
        ("train digits --resume latest --force", "resume_and_force", {}),
        ("train os:getcwd", "workload_returns_no_job", {"workload": "os:getcwd", "given": "str"}),
        ("train digits --resume latest", "no_run", {"path": "runs/digits-N"}),
        ("train digits --resume latest --out here", "no_run", {"path": "here"}),
        ("train digits --out .", "folder_not_empty", {"path": "."}),
        ("train digits --out . --force", "not_a_run", {"path": "."}),
        ("train digits --out fleet.toml", "unusable_folder", {"path": "fleet.toml"}),
        ("train digits --checkpoints memory://a", "not_persistent", {"url": "memory://a"}),
        ("train mnist", "missing_data", {"dataset": "mnist", "looked_in": []}),
        ("train my_task:small", "missing_module", {"module": "my_task"}),
        ("simulate digits --machines absent.toml", "unreadable_file", {"path": "absent.toml"}),
        (
            "simulate digits --machines fleet.toml --set engine.workers=3",
            "not_simulated",
            {"name": "engine.workers"},
        ),
        (
            "simulate digits --machines fleet.toml --set engine.kind=ray",
            "not_simulated",
            {"name": "engine.kind"},
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_invalid_arguments_are_rejected(
    oddlot: Oddlot, arguments: str, code: str, fields: dict[str, Any]
) -> None:
    mask(cores=r"\b\d+(?= processors)")
    json = ["--json"] if "digits" in arguments else []
    assert not oddlot.rejects(code, *arguments.split(), *json, **fields).out


@pytest.mark.parametrize("setting", ["{}=1", "workload={{{}=1}}"])
def test_key_with_too_many_parts_is_rejected_quickly(oddlot: Oddlot, setting: str) -> None:
    key = ".".join("a" * 10_000)
    oddlot.rejects("nested_too_deeply", "train", "digits", "--set", setting.format(key), most=64)


@pytest.mark.parametrize(
    ("arguments", "kind", "wanted"),
    [
        ("train fleet.toml", "fleet", "job"),
        ("simulate digits --machines job.toml", "job", "fleet"),
        ("train digits --chaos fleet.toml", "fleet", "chaos"),
        ("simulate chaos.toml --machines fleet.toml", "chaos", "job"),
    ],
)
def test_error_names_the_kind_of_a_wrong_file(oddlot: Oddlot, arguments: str, kind: str, wanted: str) -> None:
    Path("chaos.toml").write_text('[[faults]]\nkind = "kill"\nat_seconds = [1]\n')
    oddlot.rejects("other_kind_of_file", *arguments.split(), kind=kind, wanted=wanted)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("train digits --out .", "folder_not_empty"),
        ("train digits --out here --resume latest", "no_run"),
        ("simulate digits --machines fleet.toml --no-compute --until loss<=1", "goal_without_compute"),
    ],
)
def test_messages_name_options_instead_of_python_arguments(oddlot: Oddlot, arguments: str, code: str) -> None:
    answer = oddlot.rejects(code, *arguments.split())
    assert "--" in answer.err
    assert not re.search(r"=(True|False)|=\.\.\.", answer.err)


@pytest.mark.parametrize(
    ("line", "unquoted"),
    [
        ("until = epochs>=1", "epochs>=1"),
        ("until = accuracy>=0.98 or epochs>=30  # either", "accuracy>=0.98 or epochs>=30"),
        ("strategy = { name = fastest_k, k = 1 }", "fastest_k"),
        ("until = @", ""),
    ],
)
def test_unquoted_text_in_a_file_is_shown(oddlot: Oddlot, line: str, unquoted: str) -> None:
    Path("bad.toml").write_text(f'task = "digits"\n{line}\n')
    oddlot.rejects("invalid_toml", "train", "bad.toml", line=2, unquoted=unquoted)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("simulate", "WORKLOAD"),
        ("tran digits", "tran"),
    ],
)
def test_unknown_command_is_rejected(oddlot: Oddlot, arguments: str, name: str) -> None:
    answer = oddlot(*arguments.split())
    assert (answer.code, answer.out, answer.error) == (2, "", None)
    assert f"'{name}'" in answer.err


@pytest.mark.parametrize(
    ("command", "loss", "code", "reason"),
    [
        ("train my_jobs:small", "broken", "user_code_failed", "ValueError: a fault in the user's loss\n"),
        ("simulate my_jobs:small --machines fleet.toml", "unsound", "bad_samples", ""),
        ("train my_jobs:small", "absent", "user_code_failed", "KeyError: 'absent'\n"),
    ],
)
def test_failing_job_ends_with_exit_code_3(
    oddlot: Oddlot, command: str, loss: str, code: str, reason: str
) -> None:
    mask(node=r"w\d with train_data\[[\d, ]+\]")
    options = ["--set", f"workload.loss={loss}", "--json", "--quiet"]
    answer = oddlot.rejects(code, *command.split(), *options, exit_code=3)
    assert answer.error
    assert answer.error.fields.get("reason", "").endswith(reason)
    assert not answer.out


def test_internal_error_prints_a_traceback_with_exit_code_1(
    oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> str:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("oddlot.config.job_file.JobFile.strategy", broken)
    monkeypatch.setattr(sys, "argv", ["oddlot", "train", "digits"])
    with pytest.raises(RuntimeError, match="a bug of ours"):
        main()
