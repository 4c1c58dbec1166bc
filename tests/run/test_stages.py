"""Runs of several stages: each stage is a segment with its own job."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import oddlot
from oddlot import SGD, Adam, Asynchronous, Callback, Gossip, LocalSGD, Stage, Synchronous
from oddlot.checkpoint.background_writer import BackgroundWriter
from oddlot.core.records import Record
from oddlot.core.support.errors import CheckpointError, UsageError
from oddlot.history.callback import RunProgress, StopRun
from oddlot.history.run_folder import RunFolder
from oddlot.lr_schedules import Linear
from oddlot.report.run_report import RunReport
from oddlot.report.run_tables import segments_text
from oddlot.train.job import accuracy
from oddlot.train.stages import FromEpoch
from tests.fits import SAMPLES, a_job, distance, equals, in_batches, local, plain_loop, rows
from tests.processes import program
from tests.run.test_resume import Killed
from tests.run.test_segments import check_books, segments
from tests.transcripts import raises, warns


def last_layer(model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """Return a random direction for the last layer."""
    return {f"2.{name}": torch.randn_like(one) for name, one in model.get_submodule("2").named_parameters()}


def stages(**changes: Any) -> list[Stage]:
    """Return three stages of 2, 1 and 2 epochs: a direction, local steps, and gradients with Adam."""
    job = a_job(eval_data=rows(20), metrics={"accuracy": accuracy}, **changes)
    return [
        Stage("random", replace(job, direction=last_layer, loss=None, optimizer=SGD(0.01, momentum=0.9)), 2),
        Stage("local", replace(job, batch_size=4), 1, LocalSGD(steps=2)),
        Stage("adam", replace(job, optimizer=Adam(0.01)), 2),
    ]


def goes(folder: Path, given: Sequence[Stage] | None = None, **options: Any) -> oddlot.Run:
    options = {"engine": equals(1), "quiet": True, "checkpoint_every": "1 versions", **options}
    return oddlot.fit_stages(stages() if given is None else given, Synchronous(), out=folder, **options)


def test_stages_are_segments_of_one_run(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """A stage chooses its optimizer, so there is no warning that the state of the previous one is not kept."""
    run = goes(tmp_path)
    check_books(tmp_path, 5)
    assert [(one["stage"], one["first_version"]) for one in segments(tmp_path)] == [
        ("random", 0),
        ("local", 12),
        ("adam", 18),
    ]
    assert [one["batch_size"] for one in segments(tmp_path)] == [8, 4, 8]
    assert (run.ended, run.summary["stage"], run.summary["versions"]) == ("epochs>=5", "adam", 30)
    assert not recwarn.list
    assert [row["epochs"] for row in run.history] == [1, 2, 2, 3, 3, 4, 5], "each stage evaluates its start"
    assert ["loss" in row for row in run.history] == [False, False, True, True, True, True, True]
    assert [line.split(";")[0] for line in segments_text(RunReport.read(tmp_path).settings)] == [
        "stage random",
        "stage local",
        "stage adam",
    ]


def test_stages_equal_a_plain_loop(tmp_path: Path) -> None:
    """Two stages with one job are that job; a stage that changes only the rate continues the momentum."""
    job = a_job()
    run = goes(tmp_path, [Stage("one", job, 1), Stage("two", job, 2)], engine=equals(1))
    model = plain_loop(job, in_batches(SAMPLES, 8, 3))
    assert distance(run.model, model) == 0


def test_schedule_counts_from_the_start_of_its_stage(tmp_path: Path) -> None:
    job = a_job(lr_schedule=Linear(2, floor=0.5))
    goes(tmp_path, [Stage("one", job, 1), Stage("two", job, 3)])
    assert [one["lr_schedule"] for one in segments(tmp_path)] == [
        repr(Linear(2, floor=0.5)),
        f"{Linear(2, floor=0.5)!r} from epoch 1",
    ]
    assert [FromEpoch(Linear(2, floor=0.5), 1)(epochs) for epochs in (0, 1, 2, 3, 9)] == [
        1,
        1,
        0.75,
        0.5,
        0.5,
    ]
    assert repr(FromEpoch(last_layer, 3)) == "last_layer from epoch 3"  # type: ignore[arg-type]  # only its name is read


@pytest.mark.parametrize("version", [1, 6, 11, 12, 13, 17, 18, 19, 29, 30])
def test_killed_run_continues_in_its_stage(tmp_path: Path, version: int) -> None:
    """It equals an uninterrupted run bit for bit, in each stage and on both sides of each switch."""
    whole = goes(tmp_path / "whole")
    with pytest.raises(Killed):
        goes(tmp_path / "killed", callbacks=[KillAtVersion(version)])
    resumed = goes(tmp_path / "killed", resume="latest")
    assert distance(whole.model, resumed.model) == 0
    check_books(tmp_path / "killed", 5)
    assert [one["stage"] for one in segments(tmp_path / "killed")] == ["random", "local", "adam"]
    assert [one["first_version"] for one in segments(tmp_path / "killed")] == [0, 12, 18]


class KillAtVersion(Callback):
    """Ends the run after the merge that makes a version: by an exception, or by killing the process."""

    def __init__(self, version: int, *, process: bool = False) -> None:
        self.version, self.process = version, process

    def on_record(self, run: RunProgress, record: Record) -> None:
        if run.version >= self.version:
            if self.process:
                os.kill(os.getpid(), signal.SIGKILL)
            raise Killed


KILLED = """
import sys
from pathlib import Path
from tests.fits import local
from tests.run.test_stages import KillAtVersion, goes

goes(Path(sys.argv[1]), engine=local(1), callbacks=[KillAtVersion(int(sys.argv[2]), process=True)])
"""


@pytest.mark.usefixtures("fork_server", "warm_start")
def test_killed_process_continues_in_its_stage(tmp_path: Path) -> None:
    """Kill -9 in the second stage, and a resume that is killed in the third one."""
    whole = goes(tmp_path / "whole", engine=local(1))
    with program("-c", KILLED, tmp_path / "killed", "15") as process:
        assert process.wait(120) == -signal.SIGKILL, process.communicate()[1]
    again = KILLED.replace("callbacks", 'resume="latest", callbacks')
    with program("-c", again, tmp_path / "killed", "25") as process:
        assert process.wait(120) == -signal.SIGKILL, process.communicate()[1]
    assert [one["stage"] for one in segments(tmp_path / "killed")] == ["random", "local", "adam"]
    resumed = goes(tmp_path / "killed", engine=local(1), resume="latest")
    assert distance(whole.model, resumed.model) == 0
    check_books(tmp_path / "killed", 5)


def test_switch_that_no_checkpoint_has_is_made_again(tmp_path: Path) -> None:
    """run.json already lists the second stage, and the newest checkpoint is of the first one."""
    whole = goes(tmp_path / "whole")
    save = BackgroundWriter.save

    def killed(writer: BackgroundWriter, *arguments: Any, **more: Any) -> Any:
        if len(segments(tmp_path / "killed")) == 2:
            raise Killed
        return save(writer, *arguments, **more)

    with patch.object(BackgroundWriter, "save", killed), pytest.raises(Killed):
        goes(tmp_path / "killed")
    assert [one["stage"] for one in segments(tmp_path / "killed")] == ["random", "local"]
    resumed = goes(tmp_path / "killed", resume="latest")
    assert distance(whole.model, resumed.model) == 0
    check_books(tmp_path / "killed", 5)


def test_finished_run_stays_finished_and_can_be_longer(tmp_path: Path) -> None:
    first = goes(tmp_path)
    again = goes(tmp_path, resume="latest")
    assert distance(first.model, again.model) == 0
    *others, last = stages()
    longer = goes(tmp_path, [*others, replace(last, epochs=4)], resume="auto")
    assert longer.summary["versions"] == 42
    assert [one["stage"] for one in segments(tmp_path)] == ["random", "local", "adam"]
    check_books(tmp_path, 7)


def test_callbacks_see_one_run(tmp_path: Path) -> None:
    calls = list[str]()

    class Notes(Callback):
        def on_start(self, run: RunProgress) -> None:
            calls.append(f"start {run.goal}")

        def on_record(self, run: RunProgress, record: Record) -> None:
            calls.append("")

        def on_end(self, run: RunProgress, ended: str) -> None:
            calls.append(f"end {ended}")

    run = goes(tmp_path, callbacks=[Notes()])
    assert [call for call in calls if call] == ["start epochs>=5", "end epochs>=5"]
    assert calls.count("") == len(run.records)
    assert RunFolder(tmp_path).following_stage == ""


def test_callback_can_end_the_run_in_a_stage(tmp_path: Path) -> None:
    class Stop(Callback):
        def on_record(self, run: RunProgress, record: Record) -> None:
            if run.version >= 15:
                raise StopRun("enough")

    run = goes(tmp_path, callbacks=[Stop()])
    assert (run.ended, run.summary["stage"]) == ("stopped: enough", "local")
    assert RunFolder(tmp_path).following_stage == "adam"
    assert goes(tmp_path, resume="latest").ended == "epochs>=5"


def test_callback_can_end_the_run_at_the_end_of_a_stage(tmp_path: Path) -> None:
    """It is called for the final evaluation of the first stage, at version 12: the second one does not start."""
    ends = list[str]()

    class Stop(Callback):
        def on_evaluation(self, run: RunProgress, version: int, metrics: Mapping[str, float]) -> None:
            if version == 12 and run.epochs == 2:
                raise StopRun("enough")

        def on_end(self, run: RunProgress, ended: str) -> None:
            ends.append(ended)

    run = goes(tmp_path, callbacks=[Stop()])
    assert (run.ended, run.summary["stage"], run.summary["versions"]) == ("stopped: enough", "random", 12)
    assert ends == [run.ended]
    assert len(segments(tmp_path)) == 1
    assert goes(tmp_path, resume="latest").ended == "epochs>=5"


def test_stages_warn_once(tmp_path: Path) -> None:
    exact = [replace(stage, strategy=Synchronous(exact=True)) for stage in (stages()[0], stages()[2])]
    with warns("few_chunks") as caught:
        goes(tmp_path, exact, engine=equals(2))
    assert len(caught.all) == 1


def test_stage_with_other_settings_needs_a_new_segment(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        goes(tmp_path, callbacks=[KillAtVersion(6)])
    first, *others = stages()
    changed = [replace(first, job=replace(first.job, batch_size=4)), *others]
    with raises(CheckpointError, "other_job") as caught:
        goes(tmp_path, changed, resume="latest")
    assert caught.value.fields["different"].keys() == {"batch_size"}
    goes(tmp_path, changed, resume="latest", new_segment=True)
    assert [one["stage"] for one in segments(tmp_path)] == ["random", "random", "local", "adam"]
    check_books(tmp_path, 5)


@pytest.mark.usefixtures("fork_server", "warm_start")
def test_fork_server_of_the_next_stage_starts_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in each stage that another one follows, in its last epoch, and only for local workers."""
    calls = list[str]()
    monkeypatch.setattr("oddlot.run.stages.start_early", lambda: calls.append("start"))
    monkeypatch.setattr("oddlot.run.stages.end_early", lambda: calls.append("end"))
    goes(tmp_path / "simulated")
    assert calls == ["end"]
    with pytest.raises(Killed):
        goes(tmp_path / "local", engine=local(1), callbacks=[KillAtVersion(5)])
    assert calls == ["end", "end"]
    goes(tmp_path / "local", engine=local(1), resume="latest")
    assert calls == ["end", "end", "start", "start", "end"]


# --- rejected ----------------------------------------------------------------------------------------


def test_invalid_stages_are_rejected_before_anything_starts(tmp_path: Path) -> None:
    one, two, _ = stages()
    wide = replace(two, job=a_job(count=96))
    named = replace(two, job=a_job(name="other"))
    big = replace(two, job=a_job(batch_size=999))
    rejected: list[tuple[list[Any], str, dict[str, Any]]] = [
        ([], "invalid_value", {"name": "stages"}),
        ([one, a_job()], "invalid_value", {"name": "stages"}),
        ([one, two, one], "duplicate_stage", {"name": "random"}),
        ([one, wide], "different_stages", {"what": "number of samples", "stage": "local"}),
        ([one, named], "different_stages", {"what": "name"}),
        ([one, big], "too_few_samples", {}),
        ([one, replace(two, strategy=Gossip())], "stages_without_hub", {"strategy": "Gossip"}),
    ]
    for given, code, fields in rejected:
        with raises(UsageError, code, **fields):
            goes(tmp_path / "run", given, engine=equals(2))
    for options, code in (
        ({"until": "epochs>=1"}, "until_of_stages"),
        ({"new_segment": True}, "missing_setting"),
        ({"keep_best": "max other"}, "unknown_name"),
        ({"resume": "latest", "force": True}, "resume_and_force"),
    ):
        with raises(UsageError, code):
            goes(tmp_path / "run", **options)
    with raises(UsageError, "missing_setting", name="out"):
        oddlot.fit_stages(stages(), Synchronous(), equals(1), out=None)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_job_of_a_stage_has_no_goal() -> None:
    with raises(UsageError, "until_of_stages", given="epochs>=3"):
        Stage("a", a_job(until="epochs>=3"), 1)


@pytest.mark.parametrize(("name", "epochs"), [("", 1), ("a", 0), ("a", 1.5)])
def test_invalid_stage_is_rejected(name: str, epochs: Any) -> None:
    with raises(UsageError, "invalid_value"):
        Stage(name, a_job(), epochs)


def test_run_of_other_stages_is_not_resumed(tmp_path: Path) -> None:
    goes(tmp_path, stages()[:2])
    with raises(CheckpointError, "unknown_stage", stage="local"):
        goes(tmp_path, [replace(stages()[0], name="else")], resume="latest")
    oddlot.fit(a_job(), Asynchronous(), equals(1), until="epochs>=1", out=tmp_path / "plain", quiet=True)
    with raises(CheckpointError, "unknown_stage", stage=None):
        goes(tmp_path / "plain", resume="latest")
