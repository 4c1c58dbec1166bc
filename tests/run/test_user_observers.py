"""User-defined observers of a run, and its progress line."""

import sys
from io import StringIO
from pathlib import Path

import pytest

import oddlot
from oddlot import Asynchronous, Synchronous, UsageError
from oddlot.core.commands import Step
from oddlot.core.records import Record
from oddlot.report.run_report import RunReport
from tests.fits import a_job, fleet, rows
from tests.transcripts import raises, warns


def test_failing_observer_warns_once_and_the_run_completes() -> None:
    calls = list[Record]()

    def broken(record: Record) -> None:
        calls.append(record)
        raise ValueError("oh no")

    with warns("observer_failed") as caught:
        run = oddlot.fit(a_job(), Asynchronous(), fleet(), until="versions>=5", observers=[broken])
    assert (len(caught.all), len(calls), run.summary["versions"]) == (1, 1, 5)
    assert "oh no" in caught.fields["reason"]


@pytest.mark.parametrize(("why", "ended"), [("enough", "stopped: enough"), ("", "stopped")])
def test_observer_can_stop_the_run(why: str, ended: str, tmp_path: Path) -> None:
    def enough(record: Record) -> None:
        if any(isinstance(action, Step) for action in record.actions):
            raise oddlot.StopRun(why)

    job = a_job(eval_data=rows())
    run = oddlot.fit(job, Synchronous(), fleet(), until="epochs>=9", out=tmp_path, observers=[enough])
    assert (run.ended, run.summary["versions"], run.history[-1]["versions"]) == (ended, 1, 1)
    assert RunReport.read(tmp_path).summary["ended"] == ended
    again = oddlot.fit(job, Synchronous(), fleet(), until="versions>=3", out=tmp_path, resume="latest")
    assert again.summary["versions"] == 3


def test_metrics_are_available_by_name() -> None:
    job = a_job(eval_data=rows(), metrics={"mae": lambda outputs, targets: 0.5})
    run = oddlot.fit(job, Synchronous(), fleet(), until="versions>=2")
    assert run.metrics["mae"] == 0.5
    assert run.metrics.keys() == {"mae", "loss"}
    with raises(UsageError, "unknown_name", kind="metric", given="mea"):
        _ = run.metrics["mea"]
    with raises(UsageError, "unknown_name", kind="metric", nearest=None):
        _ = oddlot.fit(a_job(), Synchronous(), fleet(), until="versions>=2").metrics["mae"]


@pytest.mark.parametrize("quiet", [False, True])
def test_terminal_shows_progress_unless_quiet(quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    oddlot.fit(a_job(), Synchronous(), fleet(), until="versions>=2", quiet=quiet)
    assert isinstance(sys.stderr, StringIO)
    assert ("version 2" in sys.stderr.getvalue()) is not quiet
