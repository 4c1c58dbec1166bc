"""The TensorBoard callback, with a writer that keeps its scalars in memory."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

import oddlot
from oddlot import Synchronous, UsageError
from oddlot.callbacks import TensorBoard
from tests.fits import a_job, fleet, rows
from tests.transcripts import raises


class FakeWriter:
    """A stand-in for PyTorch's `SummaryWriter`."""

    made: ClassVar[list["FakeWriter"]] = []

    def __init__(self, log_dir: str, purge_step: int | None = None) -> None:
        self.log_dir, self.purge_step = log_dir, purge_step
        self.scalars: dict[str, list[tuple[int, float]]] = {}
        self.is_closed = False
        self.made.append(self)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.setdefault(tag, []).append((step, value))

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def _tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = FakeWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(FakeWriter, "made", [])


def test_scalars_are_written_by_version_and_a_resume_continues_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path / "run", "evaluate_every": "2 versions"}
    job, board = a_job(eval_data=rows()), TensorBoard(tmp_path / "board")
    run = oddlot.fit(job, Synchronous(), fleet(), until="versions>=4", callbacks=[board], **options)
    (writer,) = FakeWriter.made
    assert (writer.log_dir, writer.purge_step, writer.is_closed) == (str(tmp_path / "board"), None, True)
    assert writer.scalars["eval/loss"] == [(row["versions"], row["loss"]) for row in run.history]
    assert writer.scalars["run/epochs"][-1] == (4, run.summary["epochs"])
    assert [step for step, _ in writer.scalars["train/loss"]] == sorted([0, 1, 1, 2, 2, 3, 3, 4])
    assert max(workers for _, workers in writer.scalars["run/workers"]) == 2
    oddlot.fit(
        job, Synchronous(), fleet(), until="versions>=5", callbacks=[board], resume="latest", **options
    )
    assert FakeWriter.made[1].purge_step == 5, "versions above 4 are made again"
    assert FakeWriter.made[1].scalars["eval/loss"][-1][0] == 5


def test_missing_package_is_named_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with raises(UsageError, "missing_package", package="tensorboard"):
        TensorBoard("board")
