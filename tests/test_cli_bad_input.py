"""What the command line says to what cannot be done, and with which exit code."""

import sys

import pytest

from oddlot.cli import main
from tests.command import Oddlot


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
        ("train digits --until accurcy>=1", "--until accurcy>=1: there is no figure"),
        ("train digits --until never", "--until never: a goal is of the form NAME>=NUMBER"),
        (
            "train digits --strategy fastest_k --set strategy.k=3",
            "--set strategy.k=3: k = 3 results of 2 workers: lower k or add workers",
        ),
        (
            "train digits --strategy backup_tasks --set strategy.inner=fastest_k --set strategy.inner.k=3",
            "--set strategy.inner.k=3: k = 3 results of 2 workers: lower k or add workers",
        ),
        (
            "train digits --set job.batch=2000",
            "--set job.batch=2000: job.batch = 2000 is more than the samples: ",
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
        (
            "train digits --checkpoints memory://a",
            "memory://a is gone when this command ends: name a lasting",
        ),
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
