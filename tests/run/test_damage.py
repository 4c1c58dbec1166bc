"""Damaged folders, files and logs, full disks, and weights that overflow."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import oddlot
from oddlot import Asynchronous, CheckpointError, Job, JobError, Strategy, Synchronous, UsageError
from oddlot.checkpoint import format as checkpoint, storage
from oddlot.checkpoint.storage import Storage
from oddlot.core.events import Resumed
from oddlot.core.records import Record
from oddlot.history.log import Log, read_log
from oddlot.history.run_folder import RunFolder
from oddlot.history.run_outcome import FAILED, in_short
from oddlot.report.run_report import RunReport
from tests.fits import SAMPLES, Place, a_job, everything, fleet, local, merges, net
from tests.run.test_resume import begun, content, goes_on, merged, saved_at_once
from tests.sealed import reseal
from tests.transcripts import mask, raises, warns

# --- files ---------------------------------------------------------------------------------------


def test_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path: Path) -> None:
    begun(tmp_path)
    *_, before, newest = sorted((tmp_path / "checkpoints").iterdir())
    (newest / "conductor.json").unlink()
    message = {
        "damage": "missing_file",
        "path": str(newest),
        "file": "conductor.json",
        "checkpoint": before.name,
    }
    with warns("damaged_checkpoint_skipped", **message):
        run = goes_on(tmp_path)
    records = list(read_log(tmp_path / "records.jsonl"))
    (resumed,) = (each.event for each in records if isinstance(each.event, Resumed))
    versions = sum(1 for _ in merges(records[: resumed.after_record]))
    assert versions == int(before.name.partition("-")[0])
    assert merged(tmp_path) == everything(SAMPLES, 4)
    assert run.summary["samples_wasted"] > 0


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 2))


def test_resume_with_another_job_names_the_difference(tmp_path: Path) -> None:
    begun(tmp_path)
    before, was = content(tmp_path), json.loads((tmp_path / "run.json").read_text())
    others: dict[str, tuple[Job, Strategy]] = {
        "batch_size": (a_job(batch_size=4), Asynchronous()),
        "parameters": (a_job(wide), Asynchronous()),
        "strategy": (a_job(), Synchronous()),
        "optimizer": (a_job(optimizer=oddlot.Adam()), Asynchronous()),
    }
    for setting, (job, strategy) in others.items():
        with raises(CheckpointError, "other_job", path=str(tmp_path)) as caught:
            oddlot.fit(job, strategy, fleet(), until="epochs>=4", out=tmp_path, resume="latest")
        ((name, values),) = caught.fields["different"].items()
        assert (name, values[0]) == (setting, was[setting])
        assert content(tmp_path) == before


def test_resume_with_another_dtype_names_the_dtypes(tmp_path: Path) -> None:
    """The error names both dtypes, although the shapes in run.json are the same."""
    begun(tmp_path)
    points, sides = a_job().train_data
    job = a_job(lambda: net().double(), train_data=(points.double(), sides))
    with raises(CheckpointError, "other_job") as caught:
        oddlot.fit(job, Asynchronous(), fleet(), until="epochs>=4", out=tmp_path, resume="latest")
    assert caught.fields["different"]["0.bias"] == ("float32 [5]", "float64 [5]")
    assert len(caught.fields["different"]) == 4


def test_log_is_read_up_to_its_first_damaged_line(tmp_path: Path) -> None:
    """Records after the newest checkpoint are lost work."""
    begun(tmp_path)
    log = tmp_path / "records.jsonl"
    log.write_bytes(log.read_bytes() + b'{"is":"Record","now":')
    goes_on(tmp_path)
    whole = log.read_bytes()
    log.write_bytes(whole + b"\x00\xff nonsense\r\n" + whole.splitlines(keepends=True)[-1])
    line = whole.count(b"\n") + 1
    with warns("damaged_checkpoint_skipped", damage="damaged_file", path=str(log), line=line):
        goes_on(tmp_path, "epochs>=5")
    assert log.read_bytes().startswith(whole + b'{"is":"Record"')
    assert merged(tmp_path) == everything(SAMPLES, 5)


def test_checkpoint_newer_than_a_truncated_log_is_kept(
    tmp_path: Path,
) -> None:
    """The checkpoint contains work. Users without a copy of the log may delete the checkpoint themselves."""
    begun(tmp_path)
    log, places = tmp_path / "records.jsonl", tmp_path / "checkpoints"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*lines[:-2], "nonsense\n"]))
    before, newest = content(tmp_path), max(places.iterdir())
    counts = {"records": len(lines) - 1, "sound": len(lines) - 3}
    with raises(CheckpointError, "log_too_short", path=str(newest), line=len(lines) - 1, **counts):
        goes_on(tmp_path)
    assert content(tmp_path) == before
    for path in places.iterdir():
        if json.loads((path / "manifest.json").read_text())["records"] > counts["sound"]:
            shutil.rmtree(path)
    with warns("damaged_checkpoint_skipped", damage="damaged_file", path=str(log), line=len(lines) - 1):
        goes_on(tmp_path)
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_damaged_run_files_raise_and_can_be_restored(tmp_path: Path) -> None:
    begun(tmp_path)
    damage: list[tuple[str, str | None, str, dict[str, int]]] = [
        ("records.jsonl", "{}\n", "damaged_file", {"line": 1}),
        ("records.jsonl", None, "unreadable_file", {}),
        ("run.json", None, "missing_file", {}),
        ("run.json", '{"format": 99}', "other_format", {"format": 99}),
        *(
            ("run.json", text, "damaged_file", {})
            for text in ("", "{", "[]", "[" * 200_000, "3", "{}", '{"format": 2}')
        ),
    ]
    for name, text, code, fields in damage:
        path = tmp_path / name
        whole = path.read_bytes()
        path.unlink()
        if text is not None:
            path.write_text(text)
        with raises(CheckpointError, code, path=str(path), **fields):
            goes_on(tmp_path)
        path.write_bytes(whole)
    goes_on(tmp_path)
    (tmp_path / "run.json").unlink()
    begun(tmp_path, force=True)


def test_log_with_inconsistent_records_is_rejected(tmp_path: Path) -> None:
    begun(tmp_path)
    log = tmp_path / "records.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    first, second = [number for number, line in enumerate(lines) if '"is":"Step"' in line][:2]
    nothing = '{"is":"Record","now":0.0,"event":{"is":"Ticked"},"actions":[],"remark":""}\n'
    for number, line in ((second, lines[first]), (first, nothing)):
        log.write_text("".join([*lines[:number], line, *lines[number + 1 :]]))
        reseal(log)
        before = content(tmp_path)
        with raises(CheckpointError, "damaged_file", path=str(log)):
            goes_on(tmp_path)
        assert content(tmp_path) == before


# --- folders -------------------------------------------------------------------------------------


def test_existing_run_is_not_overwritten_without_force(tmp_path: Path) -> None:
    begun(tmp_path)
    before = content(tmp_path)
    with raises(UsageError, "folder_not_empty", path=str(tmp_path)):
        begun(tmp_path)
    with raises(UsageError, "unknown_name", given="acuracy"):
        begun(tmp_path, "acuracy>=1", force=True)  # an error that is unrelated to the folder
    assert content(tmp_path) == before


def test_force_deletes_only_the_run(tmp_path: Path) -> None:
    begun(tmp_path / "run", "epochs>=4")
    (tmp_path / "run" / "notes.txt").write_text("mine")
    begun(tmp_path / "run", "epochs>=1", force=True)
    assert merged(tmp_path / "run") == everything(SAMPLES, 1)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    saved = checkpoint.newest(Storage(tmp_path / "run" / "checkpoints"))
    assert saved.version == 6, "an older run's are gone"
    (tmp_path / "records.jsonl").write_text("mine")
    before = content(tmp_path)
    with raises(UsageError, "not_a_run", path=str(tmp_path)):
        begun(tmp_path, force=True)
    assert content(tmp_path) == before


@pytest.mark.parametrize("kind", [SystemExit, RuntimeError])
def test_failing_model_factory_leaves_the_folder_unchanged(tmp_path: Path, kind: type[BaseException]) -> None:
    begun(tmp_path / "old")
    before = content(tmp_path / "old")

    def broken() -> nn.Module:
        raise kind("no model today")

    for name in ("old", "new"):
        with raises(JobError, "user_code_failed", where="the hub"):
            begun(tmp_path / name, job=a_job(broken), force=name == "old")
    assert content(tmp_path / "old") == before
    begun(tmp_path / "new")


def read_only(*_: Any) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


def test_unusable_folder_is_rejected_and_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path / "old")
    (tmp_path / "file").write_text("")
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    with raises(CheckpointError, "no_run", path=str(tmp_path / "nowhere")):
        begun(tmp_path / "nowhere", resume="latest")
    for name in ("file", "file/run"):
        with raises(UsageError, "unusable_folder", path=str(tmp_path / name)):
            begun(tmp_path / name)
    for name in ("l\ud800ufe", "a\0b"):  # a file system that supports only ASCII rejects "ä" in this way
        with raises(UsageError, "unusable_name", name="out", given=str(tmp_path / name)):
            begun(tmp_path / name)
        with raises(UsageError, "unusable_name", name="checkpoints", given=name):
            begun(tmp_path / "old", resume="latest", checkpoints=name)
    monkeypatch.setattr("oddlot.history.folder_owner.hold", read_only)
    with raises(UsageError, "unusable_folder", path=str(tmp_path / "old")):
        begun(tmp_path / "old", resume="latest")
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


# --- a full disk ---------------------------------------------------------------------------------


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


FILES = 3
"""Files of a checkpoint."""


class ShortLog(Log):
    """A log on a disk that is full after 10 records."""

    def flush(self) -> None:
        if self.records > 10:
            with self._disk():
                full()
        super().flush()


def test_full_disk_under_the_log_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oddlot.run.saving.Log", ShortLog)
    with raises(JobError, "unwritable_file", path=str(tmp_path / "records.jsonl")):
        begun(tmp_path)
    monkeypatch.undo()
    goes_on(tmp_path)
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_full_disk_for_a_checkpoint_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, really = count(), storage._sync

    def fills_up(file: Any) -> None:
        return really(file) if next(files) < FILES else full()

    monkeypatch.setattr(storage, "_sync", fills_up)
    with warns("checkpoint_not_written", path=str(tmp_path / "checkpoints")) as caught, saved_at_once():
        run = begun(tmp_path)
    assert caught.all[-1].fields["newest"] == 0, "the last one is told with what there is"
    assert run.ended == "epochs>=2"
    assert (tmp_path / "model.safetensors").exists()


def test_full_disk_for_the_first_checkpoint_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without a first checkpoint cannot be resumed. Its summary has the reason for its end."""
    monkeypatch.setattr(storage, "_sync", full)
    seen: list[Record] = []
    with raises(JobError, "checkpoint_not_written", path=str(tmp_path / "checkpoints")) as caught:
        begun(tmp_path, callbacks=[seen.append])
    assert not seen
    monkeypatch.undo()
    assert RunReport.read(tmp_path).summary["ended"] == f"{FAILED}{in_short(caught.value)}"
    begun(tmp_path, force=True)


CHANGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda log: os.truncate(log, 0),
    "longer": lambda log: log.write_bytes(log.read_bytes() + b"\n"),
    "replaced": lambda log: shutil.copy(log, log.with_name("copy")) and log.with_name("copy").replace(log),
    "removed": Path.unlink,
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_log_ends_the_run_at_the_next_checkpoint(tmp_path: Path, change: str) -> None:
    """A run with a changed log must not continue, because it could be neither read nor resumed."""
    log, seen = tmp_path / "records.jsonl", list[Record]()

    def spoil(record: Record) -> None:
        seen.append(record)
        if len(seen) == 5:
            CHANGES[change](log)

    mask(bytes=r"\d[\d,]*(?= bytes)|(?<=the file has )\d[\d,]*")  # sizes depend on floating-point numbers
    with raises(JobError, "log_changed", path=str(log)):
        begun(tmp_path, "epochs>=99", callbacks=[spoil])
    assert len(seen) < 20


@pytest.mark.parametrize("moment", ["half", "whole"])
def test_failed_model_write_keeps_the_previous_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    model = tmp_path / "model.safetensors"
    model.write_bytes(b"before")

    def half(_: nn.Module, path: str) -> None:
        Path(path).write_bytes(b"half")
        full()

    monkeypatch.setattr(*("safetensors.torch.save_model", half) if moment == "half" else ("os.fsync", full))
    with raises(JobError, "unwritable_file", path=str(model)):
        RunFolder(tmp_path).write_model(nn.Linear(2, 2))
    assert [path.name for path in tmp_path.iterdir()] == [model.name]
    assert model.read_bytes() == b"before"


def test_renamed_files_are_synced_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's own files are synced before they are renamed, and their folder after that.

    All new parent folders are synced, too.
    """
    deeds: list[tuple[str, int]] = []
    sync, replace = os.fsync, Path.replace
    run = tmp_path / "new" / "run"

    def note_sync(descriptor: int) -> None:
        deeds.append(("sync", os.fstat(descriptor).st_ino))
        sync(descriptor)

    def note_rename(path: Path, target: Path) -> Path:
        if Path(target).parent == run:
            deeds.append(("rename", path.stat().st_ino))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_rename)
    begun(run, "epochs>=1")
    renamed = [number for number, (deed, _) in enumerate(deeds) if deed == "rename"]
    assert len(renamed) == 3, "run.json, the model and the summary"
    for number in renamed:
        assert ("sync", deeds[number][1]) in deeds[:number]
        assert ("sync", run.stat().st_ino) in deeds[number:]
    assert {("sync", path.stat().st_ino) for path in (tmp_path, run.parent, run)} <= {*deeds[: renamed[1]]}


def test_full_disk_for_the_model_raises_unwritable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("safetensors.torch.save_model", full)
    with raises(JobError, "unwritable_file", path=str(tmp_path / "model.safetensors")):
        begun(tmp_path)
    monkeypatch.undo()
    assert goes_on(tmp_path, "epochs>=2").summary["epochs"] == 2


# --- weights that overflow -----------------------------------------------------------------------


class Steep(torch.autograd.Function):
    """A function with a finite gradient that is so large that a few steps overflow."""

    @staticmethod
    def forward(ctx: Any, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.sum() * 0

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return torch.full((2, 2), 1e38)


def steep(model: nn.Module, batch: Any) -> Any:
    return Steep.apply(model.weight)  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("on", [fleet(1), local(1)], ids=["simulated", "local"])
def test_infinite_weights_are_neither_saved_nor_returned(on: Place, tmp_path: Path) -> None:
    job = a_job(lambda: nn.Linear(2, 2, bias=False), training_step=steep, optimizer=oddlot.SGD(lr=1.0))
    with warns("weights_too_large"), pytest.raises(JobError) as caught:
        oddlot.fit(job, Asynchronous(), on, until="epochs>=2", out=tmp_path, checkpoint_every="1 versions")
    assert (caught.value.code, caught.value.fields["version"]) == ("weights_not_finite", 4)
    saved = checkpoint.newest(Storage(tmp_path / "checkpoints")).load()
    assert caught.value.fields["newest"] == saved.version
    floats = [tensor for tensor in saved.tensors.values() if tensor.is_floating_point()]
    assert all(bool(tensor.isfinite().all()) for tensor in floats)
    assert not (tmp_path / "model.safetensors").exists()
