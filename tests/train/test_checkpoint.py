"""Checkpoints: whole or not there, on full disks and damaged ones."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from oddlot.core.errors import CheckpointError
from oddlot.train import checkpoint
from oddlot.train import saver as saver_module
from oddlot.train.checkpoint import Checkpoint, Snapshot
from oddlot.train.saver import BackgroundSaver
from oddlot.train.storage import Storage

LIFE = "a1b2c3"
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def save(folder: Path, what: Snapshot) -> Path:
    return folder / checkpoint.save(Storage(folder), what, LIFE)


def newest(folder: Path, job: str | None = None, records: int | None = None) -> Checkpoint:
    return checkpoint.newest(Storage(folder), job, records)


def names(folder: Path) -> list[str]:
    """Without what tells the lives of hubs apart."""
    return sorted(path.name.rpartition("-")[0] for path in folder.iterdir())


def snapshot(version: int = 42, value: float = 1.0, **changes: Any) -> Snapshot:
    tensors = {f"weights/{i}": torch.full((5, 3), value).to(dtype) for i, dtype in enumerate(DTYPES)}
    tensors |= {"version": torch.tensor(version), "empty": torch.zeros(0)}
    what: dict[str, Any] = {
        "version": version,
        "records": 10 * version,
        "job": "abc",
        "conductor": {"open": ["w1:7"], "now": 1.5},
        "layout": {"sections": [{"dtype": "float32"}]},
        "tensors": tensors,
    }
    return Snapshot(**{**what, **changes})


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    before = snapshot()
    assert save(tmp_path, before) == tmp_path / "00000042-420-a1b2c3"
    found = newest(tmp_path, "abc")
    assert (found.version, found.job, found.records, found.warnings) == (42, "abc", 420, ())
    after = found.load()
    assert (after.version, after.job, after.conductor, after.layout, after.records) == (
        42, "abc", before.conductor, before.layout, before.records,
    )  # fmt: skip
    assert list(after.tensors) == list(load_file(tmp_path / "00000042-420-a1b2c3" / "tensors.safetensors"))
    for name, tensor in before.tensors.items():
        assert after.tensors[name].dtype == tensor.dtype
        assert torch.equal(after.tensors[name], tensor)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000042-420-a1b2c3"]


def test_the_newest_is_the_one_after_the_most_records(tmp_path: Path) -> None:
    """A run that went on from an older version has a longer log."""
    for version in (9, 100_000_001, 99_999_999, 10):
        save(tmp_path, snapshot(version))
    assert newest(tmp_path).version == 100_000_001
    save(tmp_path, snapshot(12, 5.0, records=2_000_000_000))
    assert newest(tmp_path).load().tensors["weights/1"].flatten().tolist() == [5.0] * 15


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


FILES = ["conductor.json", "tensors.safetensors", "manifest.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink() if path.name != "manifest.json" else path.write_text("{"),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b" 1"),
        lambda path: path.write_bytes(b"[1, 2]"),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    save(tmp_path, snapshot(1))
    damage(save(tmp_path, snapshot(2)) / name)
    found = newest(tmp_path, "abc")
    assert found.version == 1
    (warning,) = found.warnings
    assert f"checkpoint {tmp_path / '00000002-20-a1b2c3'} is damaged: " in warning


@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_found(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, snapshot()) / name
    size = path.stat().st_size
    for place in [*range(0, size, max(1, size // 40)), size - 1]:
        flip(path, place)
        with pytest.raises(
            CheckpointError, match=r"no whole checkpoint in .*\n.*00000042-420-a1b2c3 (is damaged|has format)"
        ):
            newest(tmp_path)
        flip(path, place)
    assert newest(tmp_path).version == 42


def test_an_empty_or_missing_folder_has_none(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckpointError, match="no whole checkpoint in"):
            newest(folder)


def test_another_jobs_checkpoint_is_told_with_both_fingerprints(tmp_path: Path) -> None:
    save(tmp_path, snapshot())
    with pytest.raises(
        CheckpointError, match="belongs to another job: its fingerprint is abc, this job's is xyz"
    ):
        newest(tmp_path, "xyz")


def test_a_future_format_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    save(tmp_path, snapshot())
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has format 2, this version of oddlot reads 1"):
        newest(tmp_path)


def test_files_that_lie_are_told_when_loaded(tmp_path: Path) -> None:
    path = save(tmp_path, snapshot())
    found = newest(tmp_path)
    (path / "tensors.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0[1, 2 ] ")
    with pytest.raises(CheckpointError, match="cannot be read"):
        found.load()
    (path / "conductor.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        found.load()


# --- bad disks -----------------------------------------------------------------------------------


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, snapshot(1))
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, snapshot(2))
    assert [path.name for path in tmp_path.iterdir()] == ["00000001-10-a1b2c3"]
    assert newest(tmp_path).warnings == ()


def test_a_write_that_is_cut_off_is_an_error_and_no_checkpoint(tmp_path: Path) -> None:
    """A real limit of the system: no file of this process may grow beyond 64 KiB."""
    story = f"""
import resource, signal, torch
from pathlib import Path
from oddlot.train.checkpoint import Snapshot, newest, save
from oddlot.train.storage import Storage
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
folder = Path({str(tmp_path)!r})
there = Storage(folder)
save(there, Snapshot(1, 1, "abc", {{}}, {{}}, {{"weights": torch.ones(100)}}), "a1b2c3")
try:
    save(there, Snapshot(2, 2, "abc", {{}}, {{}}, {{"weights": torch.ones(100_000)}}), "a1b2c3")
except OSError as error:
    print("told:", error.strerror)
print([path.name for path in folder.iterdir()], newest(there).version)
"""
    done = subprocess.run([sys.executable, "-c", story], check=True, capture_output=True, text=True)
    assert done.stdout == "told: File too large\n['00000001-1-a1b2c3'] 1\n"


class Killed(BaseException):
    """As a program ends that is killed: nothing is cleared away."""


@pytest.mark.parametrize("moment", range(4))
def test_a_checkpoint_whose_writer_is_killed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """At every moment the one before is whole; what was left behind is removed once the next one is."""
    saver = BackgroundSaver(Storage(tmp_path))
    saver.save(snapshot(1, 1.0))
    saver.wait()
    deeds = iter(range(100))
    really = Storage.write

    def killed_at(storage: Storage, name: str, pieces: Iterable[bytes]) -> dict[str, int]:
        if next(deeds) >= moment:
            raise Killed
        return really(storage, name, pieces)

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(Storage, "write", killed_at)
        patch.setattr(Storage, "remove", lambda *_: None)
        save(tmp_path, snapshot(2, 2.0))
    found = newest(tmp_path)
    assert found.version == (2 if moment == 3 else 1)
    assert found.warnings == (), "it was not finished, which is no damage"
    again = BackgroundSaver(Storage(tmp_path), keep=1, there=checkpoint.saved(Storage(tmp_path)))
    again.save(snapshot(3))
    assert again.close() == saver.close() == []
    assert names(tmp_path) == ["00000003-30"]


def test_the_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        places = [tmp_path, *tmp_path.rglob("*")]
        order.extend(p.name for p in places if p.stat().st_ino == os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    save(tmp_path, snapshot())
    assert order == [
        "conductor.json.partial",
        "tensors.safetensors.partial",
        "manifest.json.partial",
        "00000042-420-a1b2c3",
        tmp_path.name,
    ]


# --- in the background ---------------------------------------------------------------------------


def wait(saver: BackgroundSaver) -> None:
    assert saver._writing is not None
    saver._writing.exception(timeout=60)


def test_the_log_is_on_the_disk_before_the_checkpoint_that_counts_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    written = vars(saver_module)["save"]

    def saves(*arguments: Any) -> Any:
        order.append("checkpoint")
        return written(*arguments)

    monkeypatch.setattr(saver_module, "sync_path", lambda path: order.append(path.name))
    monkeypatch.setattr(saver_module, "save", saves)
    log = tmp_path / "records.jsonl"
    log.write_text("a record\n")
    saver = BackgroundSaver(Storage(tmp_path / "checkpoints"), log)
    saver.save(snapshot())
    assert saver.close() == []
    assert order == ["records.jsonl", "checkpoint"]


def test_a_log_that_is_gone_for_a_while_is_a_problem_and_the_same_is_saved_later(tmp_path: Path) -> None:
    log = tmp_path / "records.jsonl"
    saver = BackgroundSaver(Storage(tmp_path / "checkpoints"), log)
    assert not saver.save(snapshot())
    assert "records.jsonl" in saver.problems()[0]
    log.write_text("a record\n")
    assert saver.save(snapshot())
    assert saver.close() == []
    assert saver.newest == newest(tmp_path / "checkpoints").version == snapshot().version


def test_the_newest_three_are_kept(tmp_path: Path) -> None:
    saver = BackgroundSaver(Storage(tmp_path))
    for version in range(1, 6):
        assert saver.save(snapshot(version))
        wait(saver)
    assert saver.close() == []
    assert names(tmp_path) == ["00000003-30", "00000004-40", "00000005-50"]


def test_what_was_given_may_change_at_once_and_only_one_is_written_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    really = checkpoint.save

    def slow(*arguments: Any) -> str:
        assert go.wait(60)
        return really(*arguments)

    monkeypatch.setattr(saver_module, "save", slow)
    saver = BackgroundSaver(Storage(tmp_path))
    conductor = {"open": ["w1:7"]}
    given = snapshot(1, conductor=conductor)
    assert saver.save(given)
    assert saver.busy
    for tensor in given.tensors.values():
        tensor.zero_()
    conductor["open"].append("w2:8")
    assert not saver.save(snapshot(2))
    go.set()
    assert saver.close() == []
    saved = newest(tmp_path).load()
    assert saved.version == 1
    assert saved.conductor == {"open": ["w1:7"]}
    assert saved.tensors["weights/1"].flatten().tolist() == [1.0] * 15


def test_staged_memory_is_used_again(tmp_path: Path) -> None:
    saver = BackgroundSaver(Storage(tmp_path))
    places = []
    for version in (1, 2):
        saver.save(snapshot(version))
        wait(saver)
        places.append({tensor.data_ptr() for tensor in saver._staged if tensor.numel()})
    assert places[0] == places[1]
    saver.close()


def test_a_full_disk_is_reported_and_later_checkpoints_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = BackgroundSaver(Storage(tmp_path))
    monkeypatch.setattr(os, "fsync", no_space)
    assert saver.save(snapshot(1))
    wait(saver)
    monkeypatch.undo()
    assert saver.save(snapshot(2))
    wait(saver)
    (told,) = saver.problems()
    assert "could not be written into" in told
    assert "No space left on device; the run goes on" in told
    assert saver.close() == []
    assert newest(tmp_path).version == 2


def test_close_waits_and_tells_what_went_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    saver = BackgroundSaver(Storage(tmp_path / "file"))
    saver.save(snapshot(1))
    (told,) = saver.close()
    assert "could not be written" in told


def test_a_mistake_in_what_is_given_is_no_bad_luck(tmp_path: Path) -> None:
    saver = BackgroundSaver(Storage(tmp_path))
    with pytest.raises(TypeError, match="not JSON serializable"):
        saver.save(snapshot(conductor={"rule": object()}))
    saver.save(snapshot(tensors={"a": torch.zeros(1, dtype=torch.complex64)}))
    wait(saver)
    with pytest.raises(KeyError):
        saver.problems()
    saver.close()


def test_the_manifest_can_be_read_by_a_person(tmp_path: Path) -> None:
    manifest = json.loads((save(tmp_path, snapshot()) / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert manifest["version"] == 42
    assert manifest["job"] == "abc"
    assert set(manifest["files"]) == {"conductor.json", "tensors.safetensors"}
