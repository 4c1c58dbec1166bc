"""The weights of the best evaluation: which are kept, in which places, and after a crash."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import oddlot
from oddlot import Asynchronous, Callback, Gossip, Run, Synchronous, UsageError
from oddlot.checkpoint.background_writer import BackgroundWriter
from oddlot.checkpoint.best_writer import BestFile, best_files, needed
from oddlot.checkpoint.storage import Storage
from oddlot.core.events import Evaluated
from oddlot.history.callback import RunProgress
from oddlot.history.log import numbered, read_log
from oddlot.report.run_report import RunReport
from tests.fits import a_job, fleet, local, rows
from tests.run.test_mesh import gossiped
from tests.run.test_resume import Killed
from tests.transcripts import raises, warns


def scored(scores: list[float]) -> oddlot.Job:
    """Return a job with these values of the metric `score`, one per evaluation, then the last one again."""
    values = iter(scores)

    def score(outputs: Tensor, targets: Tensor) -> float:
        return next(values, scores[-1])

    return a_job(eval_data=rows(8), metrics={"score": score})


class KillAfter(Callback):
    """Kills the run after a number of evaluations."""

    def __init__(self, evaluations: int) -> None:
        self.evaluations = evaluations

    def on_evaluation(self, run: RunProgress, version: int, metrics: Any) -> None:
        self.evaluations -= 1
        if not self.evaluations:
            raise Killed


def trained(job: oddlot.Job, out: Path, until: str = "versions>=6", **settings: Any) -> Run:
    options: dict[str, Any] = {"evaluate_every": "1 versions", "keep_best": "max score"}
    return oddlot.fit(job, Synchronous(), fleet(), out=out, until=until, **{**options, **settings})


def the_file(folder: Path) -> tuple[BestFile, dict[str, str]]:
    """Return the newest file of a folder, and its metadata."""
    best = best_files(Storage(folder))[-1]
    with safe_open(folder / best.name, "pt") as file:
        return best, file.metadata()


@pytest.mark.parametrize("on", [fleet(), local(2)], ids=["simulated", "local"])
@pytest.mark.parametrize("keep_best", ["loss", "accuracy"])
def test_file_has_the_weights_of_the_best_evaluation(keep_best: str, on: Any, tmp_path: Path) -> None:
    is_local = isinstance(on, oddlot.Local)
    rule = oddlot.SGD(0.2 if is_local else 4.0, momentum=0.9)
    job = a_job(eval_data=rows(40), metrics={"accuracy": oddlot.accuracy}, optimizer=rule)
    options: dict[str, Any] = {"until": "epochs>=6", "evaluate_every": "1 versions", "keep_best": keep_best}
    run = oddlot.fit(job, Asynchronous(), on, out=tmp_path, **options)
    sign = -1 if keep_best == "loss" else 1
    best = max(run.history, key=lambda row: sign * row[keep_best])
    assert is_local or best["versions"] < run.summary["versions"], "the last version is not the best"
    assert run.summary["best"]["version"] == best["versions"]
    assert RunReport.read(tmp_path).summary["best"] == run.summary["best"]
    file, metadata = the_file(tmp_path)
    assert (file.version, metadata["version"], metadata["weights"]) == (
        best["versions"],
        f"{file.version}",
        "best",
    )
    model = job.model()
    with safe_open(tmp_path / file.name, "pt") as opened:
        model.load_state_dict(
            {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no dict
        )
    inputs, targets = rows(40)
    with torch.no_grad():
        loss = float(torch.nn.functional.cross_entropy(model(inputs), targets))
    assert loss == pytest.approx(best["loss"], rel=1e-5)


@pytest.mark.parametrize(("later", "best"), [([2.0], 3.0), ([2.0, 4.0, 3.0], 4.0)])
def test_best_of_lost_work_does_not_count_and_the_earlier_best_remains(
    later: list[float], best: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = BackgroundWriter.save
    monkeypatch.setattr(BackgroundWriter, "save", lambda self, snapshot: save(self, snapshot) and self.wait())
    with pytest.raises(Killed):
        trained(
            scored([1, 3, 2, 2, 9]),
            tmp_path,
            "versions>=99",
            checkpoint_every="3 versions",
            callbacks=[KillAfter(5)],
        )
    assert the_file(tmp_path)[0].version == 5
    run = trained(scored(later), tmp_path, "versions>=6", resume="latest")
    found, metadata = the_file(tmp_path)
    assert run.summary["best"]["version"] == found.version
    assert run.summary["best"]["metrics"]["score"] == best
    history = dict(numbered(read_log(tmp_path / "records.jsonl")))
    event = history[found.record].event
    assert isinstance(event, Evaluated)
    assert (event.version, f"{event.version}") == (found.version, metadata["version"])
    assert run.summary["best"]["metrics"]["score"] == max(row["score"] for row in run.history)


def test_best_before_a_crash_remains_without_keep_best_and_for_another_metric(tmp_path: Path) -> None:
    trained(scored([1, 3, 2]), tmp_path, "versions>=3")
    run = trained(scored([2]), tmp_path, "versions>=4", resume="latest", keep_best=None)
    assert (the_file(tmp_path)[0].version, run.summary["best"]) == (2, None)
    run = trained(scored([2]), tmp_path, "versions>=5", resume="latest", keep_best="min score")
    assert run.summary["best"]["metrics"]["score"] == 2.0
    assert the_file(tmp_path)[0].version == run.summary["best"]["version"] > 2


def test_best_weights_are_next_to_checkpoints_elsewhere_and_fetched_by_a_resume(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    trained(scored([1, 3, 2]), tmp_path / "one", "versions>=3", checkpoints=elsewhere)
    there = best_files(Storage(elsewhere))
    assert there == best_files(Storage(tmp_path / "one"))
    run = trained(scored([2]), tmp_path / "two", "versions>=4", checkpoints=elsewhere, resume="latest")
    assert run.summary["best"]["metrics"] == {"loss": run.history[1]["loss"], "score": 3.0}
    assert (tmp_path / "two" / there[-1].name).read_bytes() == (elsewhere / there[-1].name).read_bytes()
    trained(scored([5, 4]), tmp_path / "two", "versions>=2", checkpoints=elsewhere, force=True)
    assert [one.version for one in best_files(Storage(elsewhere))] == [1]
    assert [one.version for one in best_files(Storage(tmp_path / "two"))] == [1]


def test_unfinished_file_is_removed_by_a_resume(tmp_path: Path) -> None:
    trained(scored([1]), tmp_path, "versions>=1")
    partial = tmp_path / "best" / "00000009-77.safetensors.partial"
    partial.write_bytes(b"")
    trained(scored([1]), tmp_path, "versions>=2", resume="latest")
    assert not partial.exists()


def test_files_that_a_resume_may_need_are_kept() -> None:
    files = [BestFile(record, record) for record in (3, 5, 8, 13)]
    assert needed(files, ()) == {files[3]}
    assert needed(files, [9, 20]) == {files[2], files[3]}
    assert needed(files, [3, 4]) == {files[0], files[3]}
    assert needed([], [3]) == set()


def test_unwritable_best_weights_warn_and_the_run_continues(tmp_path: Path) -> None:
    class Blocks(Callback):
        def on_start(self, run: RunProgress) -> None:
            (tmp_path / "best").write_text("a file")

    with warns("best_weights_not_written", path=str(tmp_path)):
        run = trained(scored([1, 2]), tmp_path, "versions>=2", callbacks=[Blocks()])
    assert run.summary["versions"] == 2


def test_keep_best_is_checked_before_the_run(tmp_path: Path) -> None:
    job = scored([1])
    with raises(UsageError, "missing_setting", name="out"):
        oddlot.fit(job, Synchronous(), fleet(), until="versions>=1", keep_best="max score")
    with raises(UsageError, "unknown_name", given="scores", nearest="score"):
        trained(job, tmp_path, keep_best="max scores")
    with raises(UsageError, "no_evaluation_set", name="keep_best"):
        trained(a_job(), tmp_path, keep_best="loss")
    with raises(UsageError, "no_evaluation_set", name="keep_best"):
        oddlot.fit(
            job, Synchronous(), fleet(computes=False), until="versions>=1", out=tmp_path, keep_best="loss"
        )
    with raises(UsageError, "best_without_hub", strategy="Gossip"):
        gossiped(Gossip(), out=tmp_path, keep_best="loss")
    with raises(UsageError, "invalid_value", name="keep_best", given=3):
        trained(job, tmp_path, keep_best=3)
    assert not list(tmp_path.iterdir())
