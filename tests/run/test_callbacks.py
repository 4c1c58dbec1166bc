"""Callbacks of a run, its metrics by name, and its progress line."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import oddlot
from oddlot import Asynchronous, Callback, Gossip, JobError, Synchronous, UsageError
from oddlot.checkpoint.format import MANIFEST
from oddlot.core.commands import Step
from oddlot.core.records import Record
from oddlot.history.callback import RunProgress
from oddlot.history.run_outcome import FAILED
from oddlot.report.run_report import RunReport
from tests.fits import a_job, fleet, local, rows
from tests.run.test_mesh import gossiped, peers
from tests.transcripts import raises, warns


@dataclass
class Diary(Callback):
    """A callback that notes all calls except records."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

    def on_start(self, run: RunProgress) -> None:
        self.calls.append(("start", run.version, len(run.earlier)))

    def on_record(self, run: RunProgress, record: Record) -> None:
        self.records.append(record)

    def on_evaluation(self, run: RunProgress, version: int, metrics: Mapping[str, float]) -> None:
        assert run.history[-1]["loss"] == metrics["loss"], "the figures are current"
        self.calls.append(("evaluation", version))

    def on_checkpoint(self, run: RunProgress, version: int, path: str) -> None:
        self.calls.append(("checkpoint", version, (Path(path) / MANIFEST).is_file()))

    def on_end(self, run: RunProgress, ended: str) -> None:
        self.calls.append(("end", run.version, ended))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        """Return the arguments of all calls of one kind."""
        return [call[1:] for call in self.calls if call[0] == kind]


def test_callback_sees_the_life_of_a_run_and_of_its_resume(tmp_path: Path) -> None:
    first, second, heard = Diary(), Diary(), list[Record]()
    options: dict[str, Any] = {"out": tmp_path, "evaluate_every": "2 versions"}
    job = a_job(eval_data=rows())
    run = oddlot.fit(job, Synchronous(), fleet(), until="versions>=5", callbacks=[first], **options)
    assert first.calls[0] == ("start", 0, 0)
    assert first.of("evaluation") == [(row["versions"],) for row in run.history] == [(2,), (4,), (5,)]
    assert first.of("checkpoint")[-1] == (5, True), "the last checkpoint is announced before the end"
    assert first.calls[-1] == ("end", 5, "versions>=5")
    assert first.records == list(run.records)
    run = oddlot.fit(
        job,
        Synchronous(),
        fleet(),
        until="versions>=6",
        resume="latest",
        callbacks=[second, heard.append],
        **options,
    )
    assert second.calls[0] == ("start", 5, len(run.records) - len(second.records))
    assert second.of("evaluation")[-1] == (6,)
    assert heard == list(run.records), "a function receives the earlier records too"


@pytest.mark.parametrize("on", [peers(2), local(2)], ids=["simulated", "local"])
def test_callback_on_a_mesh_sees_checkpoints_and_the_end(on: Any, tmp_path: Path) -> None:
    diary = Diary()
    run = gossiped(Gossip(), on, until="epochs>=2", out=tmp_path, callbacks=[diary])
    assert diary.calls[0] == ("start", 0, 0)
    assert len(diary.of("evaluation")) == len(run.history)
    assert diary.of("checkpoint")
    assert all(is_complete for _, is_complete in diary.of("checkpoint"))
    assert diary.calls[-1] == ("end", run.summary["versions"], run.ended)


def test_callback_hears_of_a_failed_run(tmp_path: Path) -> None:
    def broken(model: nn.Module, batch: Any) -> Tensor:
        raise ValueError("no loss")

    diary = Diary()
    job = a_job(loss=None, training_step=broken)
    with raises(JobError, "user_code_failed"):
        oddlot.fit(job, Synchronous(), fleet(), until="versions>=5", out=tmp_path, callbacks=[diary])
    assert diary.calls[-1][2].startswith(FAILED)


def test_failing_callback_warns_once_and_the_run_completes() -> None:
    calls, diary = list[Record](), Diary()

    def broken(record: Record) -> None:
        calls.append(record)
        raise ValueError("oh no")

    with warns("callback_failed") as caught:
        run = oddlot.fit(a_job(), Asynchronous(), fleet(), until="versions>=5", callbacks=[broken, diary])
    assert (len(caught.all), len(calls), run.summary["versions"]) == (1, 1, 5)
    assert "oh no" in caught.fields["reason"]
    assert diary.records == list(run.records)


@pytest.mark.parametrize(("why", "ended"), [("enough", "stopped: enough"), ("", "stopped")])
def test_callback_can_stop_the_run(why: str, ended: str, tmp_path: Path) -> None:
    def enough(record: Record) -> None:
        if any(isinstance(action, Step) for action in record.actions):
            raise oddlot.StopRun(why)

    job = a_job(eval_data=rows())
    run = oddlot.fit(job, Synchronous(), fleet(), until="epochs>=9", out=tmp_path, callbacks=[enough])
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
