"""What the command line says to what cannot be done, and with which exit code."""

import sys
from typing import Any

import pytest

from oddlot.cli import main
from oddlot.core.errors import UsageErrors
from tests.command import Oddlot
from tests.transcripts import mask

INNER = "--strategy backup_tasks --set strategy.inner=fastest_k --set strategy.inner.k=3"


@pytest.mark.parametrize(
    ("arguments", "code", "fields"),
    [
        ("train digitz", "unknown_name", {"kind": "task", "nearest": "digits"}),
        ("train digits --strategy fastestk", "unknown_name", {"flag": "--strategy fastestk"}),
        ("train digits --workers 0", "invalid_value", {"flag": "--workers 0", "given": 0}),
        ("train digits --workers 9999", "too_few_samples", {"flag": "--workers 9999", "samples": 1437}),
        ("train digits --until accurcy>=1", "unknown_name", {"kind": "figure", "nearest": "accuracy"}),
        ("train digits --until never", "invalid_goal", {"flag": "--until never"}),
        ("train digits --strategy fastest_k --set strategy.k=3", "too_few_workers", {"k": 3, "workers": 2}),
        (f"train digits {INNER}", "too_few_workers", {"flag": "--set strategy.inner.k=3"}),
        ("train digits --set job.batch=2000", "too_few_samples", {"name": "job.batch", "given": 2000}),
        ("train digits --seed -1", "invalid_value", {"flag": "--seed -1"}),
        ("train digits --workers 2 --set workers=1", "said_twice", {"before": "--workers 2"}),
        (
            "train digits --strategy quorum --set strategy={k=1}",
            "said_twice",
            {"before": "--strategy quorum"},
        ),
        ("train digits --set job={batch=8} --set job.batch=9", "said_twice", {"flag": "--set job.batch=9"}),
        ("train digits --set task=mnist", "said_twice", {"flag": "--set task=mnist"}),
        ("train digits --until dollars>=1", "goal_without_price", {"flag": "--until dollars>=1"}),
        ("train digits --workers 1000000000", "too_many_workers", {"flag": "--workers 1000000000"}),
        ("train digits --set threads=9999", "too_many_threads", {"flag": "--set threads=9999"}),
        ("train os:getcwd", "task_returns_no_job", {"task": "os:getcwd", "given": "str"}),
        ("train digits --resume", "no_run", {"path": "runs/digits-N"}),
        ("train digits --resume --out here", "no_run", {"path": "here"}),
        ("train digits --out .", "folder_not_empty", {"path": "."}),
        ("train digits --out . --force", "not_a_run", {"path": "."}),
        ("train digits --out fleet.toml", "unusable_folder", {"path": "fleet.toml"}),
        ("train digits --checkpoints memory://a", "not_persistent", {"url": "memory://a"}),
        ("train mnist", "missing_data", {"dataset": "mnist", "looked_in": []}),
        ("train my_task:small", "missing_module", {"module": "my_task"}),
        ("simulate digits --machines absent.toml", "unreadable_file", {"path": "absent.toml"}),
        ("simulate digits --machines fleet.toml --set workers=3", "not_simulated", {"name": "workers"}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_cannot_be_done(oddlot: Oddlot, arguments: str, code: str, fields: dict[str, Any]) -> None:
    mask(cores=r"\b\d+(?= processors)")
    json = ["--json"] if "digits" in arguments else []
    assert not oddlot.refuses(code, *arguments.split(), *json, **fields).out


@pytest.mark.parametrize("setting", ["{}=1", "task_options={{{}=1}}"])
def test_a_key_of_very_many_parts_is_refused_at_once(oddlot: Oddlot, setting: str) -> None:
    key = ".".join("a" * 10_000)
    oddlot.refuses("nested_too_deeply", "train", "digits", "--set", setting.format(key), most=64)


@pytest.mark.parametrize(
    ("arguments", "key"), [("train fleet.toml", "machines"), ("simulate digits --machines job.toml", "task")]
)
def test_a_file_of_another_kind(oddlot: Oddlot, arguments: str, key: str) -> None:
    answer = oddlot.refuses("several_errors", *arguments.split())
    assert isinstance(answer.error, UsageErrors)
    unknown = [error.fields for error in answer.error.errors if error.code == "unknown_key"]
    assert [fields["line"] for fields in unknown if fields["given"] == key] == [1]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("train digits --workers two", "--workers"),
        ("train", "task"),
        ("tran digits", "tran"),
        ("simulate digits", "--machines"),
    ],
)
def test_what_is_no_command(oddlot: Oddlot, arguments: str, name: str) -> None:
    answer = oddlot(*arguments.split())
    assert (answer.code, answer.out, answer.error) == (2, "", None)
    assert f"'{name}'" in answer.err


@pytest.mark.parametrize(
    ("command", "loss", "code", "reason"),
    [
        ("train my_tasks:small", "broken", "user_code_failed", "ValueError: a fault in the user's loss\n"),
        ("simulate my_tasks:small --machines fleet.toml", "unsound", "bad_samples", ""),
        ("train my_tasks:small", "absent", "user_code_failed", "KeyError: 'absent'\n"),
    ],
)
def test_a_failing_job_ends_with_exit_code_3(
    oddlot: Oddlot, command: str, loss: str, code: str, reason: str
) -> None:
    mask(node=r"w\d(?=:)")
    options = ["--set", f"task_options.loss={loss}", "--json", "--quiet"]
    answer = oddlot.refuses(code, *command.split(), *options, exit_code=3)
    assert answer.error
    assert answer.error.fields.get("reason", "").endswith(reason)
    assert not answer.out


def test_a_bug_is_a_traceback_and_exit_code_1(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> str:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("oddlot.settings.JobFile.strategy", broken)
    monkeypatch.setattr(sys, "argv", ["oddlot", "train", "digits"])
    with pytest.raises(RuntimeError, match="a bug of ours"):
        main()
