"""Folders, files and disks that are not as they should be."""

import errno
import json
import os
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import oddlot
from oddlot import Asynchronous, CheckpointError, JobError, Strategy, Synchronous, UsageError
from oddlot.core import words as w
from oddlot.log import Log, read_log
from oddlot.report.figures import Figures
from oddlot.train import checkpoint, storage
from oddlot.train.storage import Storage
from tests.fits import SAMPLES, Place, a_job, everything, fleet, local, merges
from tests.test_resume import begun, content, goes_on, merged

# --- files ---------------------------------------------------------------------------------------


def flip(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def truncate(folder: Path) -> None:
    os.truncate(folder / "conductor.json", 100)


def nest(folder: Path) -> None:
    (folder / "manifest.json").write_text("[" * 200_000)


def lose(folder: Path) -> None:
    (folder / "conductor.json").unlink()


@pytest.mark.parametrize("damage", [flip, truncate, nest, lose])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, damage: Any) -> None:
    begun(tmp_path)
    *_, before, newest = sorted((tmp_path / "checkpoints").iterdir())
    damage(newest)
    with pytest.warns(UserWarning, match=f"{newest} is damaged"):
        run = goes_on(tmp_path)
    resumed = next(
        record for record in read_log(tmp_path / "records.jsonl") if isinstance(record.event, w.Resumed)
    )
    assert isinstance(resumed.event, w.Resumed)
    versions = sum(
        1 for _ in merges(list(read_log(tmp_path / "records.jsonl"))[: resumed.event.after_record])
    )
    assert versions == int(before.name.partition("-")[0])
    assert merged(tmp_path) == everything(SAMPLES, 4)
    assert run.summary["samples_wasted"] > 0


def test_without_a_whole_checkpoint_every_damage_is_told(tmp_path: Path) -> None:
    begun(tmp_path)
    saved = sorted((tmp_path / "checkpoints").iterdir())
    for folder in saved:
        lose(folder)
    with pytest.raises(CheckpointError, match="no whole checkpoint") as error:
        goes_on(tmp_path)
    assert all(str(folder) in str(error.value) for folder in saved)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 2))


@pytest.mark.parametrize(
    ("changes", "strategy", "told"),
    [
        ({"batch": 4}, Asynchronous(), ["batch: 8 in the run, 4 now"]),
        ({"model": wide}, Asynchronous(), ["'0.weight': [5, 2]", "'0.weight': [7, 2]"]),
        (
            {},
            Synchronous(),
            ["strategy: Asynchronous(samples=None, ", "in the run, Synchronous(samples=None) now"],
        ),
        (
            {"optimizer": oddlot.Adam()},
            Asynchronous(),
            ["optimizer: SGD(lr=0.1, ", "in the run, Adam(lr=0.001, "],
        ),
    ],
)
def test_the_run_of_another_job_is_told_with_the_difference(
    tmp_path: Path, changes: dict[str, Any], strategy: Strategy, told: list[str]
) -> None:
    begun(tmp_path)
    before = content(tmp_path)
    with pytest.raises(CheckpointError, match="is the run of another job") as error:
        oddlot.fit(a_job(**changes), strategy, fleet(), until="epochs>=4", out=tmp_path, resume=True)
    assert all(part in str(error.value) for part in told), error.value
    assert content(tmp_path) == before


def test_a_log_with_an_unfinished_last_line_is_read_up_to_it(tmp_path: Path) -> None:
    begun(tmp_path)
    log = tmp_path / "records.jsonl"
    log.write_bytes(log.read_bytes() + b'{"is":"Record","now":')
    goes_on(tmp_path)
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_a_log_that_is_damaged_behind_the_newest_checkpoint_is_cut_there(tmp_path: Path) -> None:
    begun(tmp_path)
    log = tmp_path / "records.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + b"\x00\xff nonsense\r\n" + whole.splitlines(keepends=True)[-1])
    with pytest.warns(
        UserWarning, match=r"records.jsonl:15 is damaged and left out, .*; going on from 000000"
    ):
        goes_on(tmp_path)
    assert log.read_bytes().startswith(whole + b'{"is":"Record"')
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_a_checkpoint_that_counts_on_records_which_the_log_has_lost_is_not_thrown_away(
    tmp_path: Path,
) -> None:
    """It holds work. Whoever has no copy of the log may decide to lose it."""
    begun(tmp_path)
    log = tmp_path / "records.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*lines[:-2], "nonsense\n"]))
    before = content(tmp_path)
    told = r"records\.jsonl:\d+ is damaged .*\ncheckpoint .*00000012-13-.* was made after 13 .* only 11 .*: restore"
    with pytest.raises(CheckpointError, match=told):
        goes_on(tmp_path)
    assert content(tmp_path) == before
    for path in (tmp_path / "checkpoints").iterdir():
        if json.loads((path / "manifest.json").read_text())["records"] > 11:
            shutil.rmtree(path)
    with pytest.warns(UserWarning, match=r"is damaged and left out, .*; going on from 000000"):
        goes_on(tmp_path)
    assert merged(tmp_path) == everything(SAMPLES, 4)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("run.json", "{", "run.json is damaged: restore it from a copy, or begin anew"),
        ("records.jsonl", "{}\n", "records.jsonl:1 is damaged: restore"),
        (
            "records.jsonl",
            None,
            r"cannot read the log .*No such file.* restore it from a copy, or begin anew",
        ),
    ],
)
def test_a_damaged_run_is_told(tmp_path: Path, name: str, text: str | None, told: str) -> None:
    begun(tmp_path)
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=told):
        goes_on(tmp_path)


# --- folders -------------------------------------------------------------------------------------


def test_a_run_is_never_overwritten_unasked(tmp_path: Path) -> None:
    begun(tmp_path)
    before = content(tmp_path)
    with pytest.raises(UsageError, match=r"is not empty: resume=True .*force=True"):
        begun(tmp_path)
    with pytest.raises(UsageError, match="no figure"):
        begun(tmp_path, "acuracy>=1", force=True)  # a mistake that has nothing to do with the folder
    assert content(tmp_path) == before


def test_force_throws_away_the_run_and_nothing_else(tmp_path: Path) -> None:
    begun(tmp_path, "epochs>=4")
    (tmp_path / "notes.txt").write_text("mine")
    begun(tmp_path, "epochs>=1", force=True)
    assert merged(tmp_path) == everything(SAMPLES, 1)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert checkpoint.newest(Storage(tmp_path / "checkpoints")).version == 6, "an older run's are gone"


@pytest.mark.parametrize("change", ["doubled", "lost"])
def test_a_log_with_a_line_too_many_or_too_few_is_no_history(tmp_path: Path, change: str) -> None:
    begun(tmp_path)
    log = tmp_path / "records.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    merges_at = [number for number, line in enumerate(lines) if '"is":"Step"' in line][:2]
    if change == "doubled":
        lines[merges_at[1]] = lines[merges_at[0]]
    else:
        lines[merges_at[0]] = '{"is":"Record","now":0.0,"event":{"is":"Ticked"},"actions":[],"remark":""}\n'
    log.write_text("".join(lines))
    before = content(tmp_path)
    with pytest.raises(CheckpointError, match=r"records\.jsonl is damaged.*[Rr]estore the file from a copy"):
        goes_on(tmp_path)
    assert content(tmp_path) == before


def test_a_run_without_its_settings_is_no_dead_end(tmp_path: Path) -> None:
    begun(tmp_path)
    settings = tmp_path / "run.json"
    kept = settings.read_text()
    settings.unlink()
    with pytest.raises(CheckpointError, match=r"run\.json is missing: restore it from a copy, or begin anew"):
        goes_on(tmp_path)
    settings.write_text(kept)
    goes_on(tmp_path)
    settings.unlink()
    begun(tmp_path, force=True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is damaged"),
        ("[]", "is damaged"),
        pytest.param("[" * 200_000, "is damaged", id="nested"),
        ("3", "is damaged"),
        ("{}", "is damaged"),
        ('{"format": 1}', "is damaged"),
        ('{"format": 99}', "has format 99, this version of oddlot reads 1"),
    ],
)
def test_settings_that_cannot_be_read_are_told(tmp_path: Path, text: str, told: str) -> None:
    begun(tmp_path)
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"run\.json {told}"):
        goes_on(tmp_path)


def test_force_keeps_the_old_run_until_the_new_one_begins(tmp_path: Path) -> None:
    begun(tmp_path)
    before = content(tmp_path)

    def broken() -> nn.Module:
        raise SystemExit("no model today")

    with pytest.raises(JobError, match="no model today"):
        oddlot.fit(a_job(broken), Asynchronous(), fleet(), until="epochs>=1", out=tmp_path, force=True)
    assert content(tmp_path) == before


def test_force_touches_no_folder_that_holds_no_run(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("mine")
    with pytest.raises(UsageError, match="holds no run, so it is not thrown away"):
        begun(tmp_path, force=True)
    assert content(tmp_path) == {str(tmp_path / "records.jsonl"): b"mine"}


def test_a_run_that_could_not_begin_leaves_the_folder_free(tmp_path: Path) -> None:
    def broken() -> nn.Module:
        raise RuntimeError("no model today")

    with pytest.raises(JobError, match="no model today"):
        oddlot.fit(a_job(broken), Asynchronous(), fleet(), until="epochs>=1", out=tmp_path / "run")
    begun(tmp_path / "run")


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UsageError, match=r"cannot use .*file.* as the run's folder: Not a directory"):
            begun(place)
    with pytest.raises(CheckpointError, match="there is no run to resume"):
        begun(tmp_path / "nowhere", resume=True)
    assert not (tmp_path / "nowhere").exists()


def read_only(*_: Any) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


def test_a_folder_that_is_read_only_is_told_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path / "old")
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    monkeypatch.setattr("oddlot.run_folder.RunFolder._lock", read_only)
    for resume in (False, True):
        with pytest.raises(UsageError, match=r"cannot use .* as the run's folder: Permission denied"):
            begun(tmp_path / ("old" if resume else "new"), resume=resume)
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "old").rglob("*")) == before[1:]


# --- a full disk ---------------------------------------------------------------------------------


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


FILES = 3
"""of a checkpoint"""


class ShortLog(Log):
    """Of a run whose disk is full after a while."""

    def flush(self) -> None:
        if self.records > 10:
            with self._disk():
                full()
        super().flush()


def test_a_disk_that_fills_up_under_the_log_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oddlot.training.Log", ShortLog)
    with pytest.raises(JobError, match=r"cannot write the log .*No space left on device.*resume"):
        begun(tmp_path)
    monkeypatch.undo()
    goes_on(tmp_path)
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_a_checkpoint_that_finds_no_room_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, really = count(), storage._sync

    def fills_up(file: Any) -> None:
        return really(file) if next(files) < FILES else full()

    monkeypatch.setattr(storage, "_sync", fills_up)
    with pytest.warns(
        UserWarning, match="could not be written .*No space left.*(the run goes on|is of version 0)"
    ):
        run = begun(tmp_path)
    assert run.ended == "epochs>=2"
    assert (tmp_path / "model.safetensors").exists()


def test_a_run_whose_first_checkpoint_finds_no_room_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be gone on with; its folder tells why it ended."""
    monkeypatch.setattr(storage, "_sync", full)
    seen: list[w.Record] = []
    with pytest.raises(
        JobError, match=r"checkpoint could not be written .*No space left.*: make room, then resume the run"
    ):
        begun(tmp_path, observers=[seen.append])
    assert not seen
    monkeypatch.undo()
    ended = Figures.read(tmp_path).summary["ended"]
    assert ended.startswith("failed: a checkpoint could not be written into")
    begun(tmp_path, force=True)


def test_a_model_that_finds_no_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("safetensors.torch.save_model", full)
    with pytest.raises(JobError, match=r"cannot write .*model.safetensors .*No space left.*resume"):
        begun(tmp_path)
    monkeypatch.undo()
    assert goes_on(tmp_path, "epochs>=2").summary["epochs"] == 2


# --- weights that overflow -----------------------------------------------------------------------


class Steep(torch.autograd.Function):
    """A gradient that is finite, and so large that a few steps overflow."""

    @staticmethod
    def forward(ctx: Any, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.sum() * 0

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return torch.full((2, 2), 1e38)


def steep(model: nn.Module, batch: Any) -> Any:
    return Steep.apply(model.weight)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("on", [fleet(1), local(1)], ids=["simulated", "local"])
def test_weights_that_overflow_are_neither_saved_nor_returned(on: Place, tmp_path: Path) -> None:
    job = a_job(lambda: nn.Linear(2, 2, bias=False), training_step=steep, optimizer=oddlot.SGD(lr=1.0))
    with pytest.raises(
        JobError, match=r"the weights of version .* are not finite: the training has diverged"
    ):
        oddlot.fit(job, Asynchronous(), on, until="epochs>=2", out=tmp_path, checkpoint_every="1 versions")
    saved = checkpoint.newest(Storage(tmp_path / "checkpoints")).load()
    assert all(
        bool(tensor.isfinite().all()) for tensor in saved.tensors.values() if tensor.is_floating_point()
    )
    assert not (tmp_path / "model.safetensors").exists()
