"""Checkpoints are complete or absent, also on full and damaged disks."""

import errno
import json
import os
import resource
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from safetensors.torch import load_file

from oddlot.checkpoint import background_writer as saver_module, format as checkpoint
from oddlot.checkpoint.background_writer import BackgroundWriter
from oddlot.checkpoint.format import Checkpoint, Snapshot
from oddlot.checkpoint.storage import Storage
from oddlot.core.records import HostState
from oddlot.core.support.errors import CheckpointError
from tests.transcripts import check, raises

LIFE = "a1b2c3"
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
FILES = ["conductor.json", "tensors.safetensors", "manifest.json"]


def save(folder: Path, what: Snapshot) -> Path:
    return folder / checkpoint.save(Storage(folder), what, LIFE)


def newest(folder: Path, records: int | None = None) -> Checkpoint:
    return checkpoint.newest(Storage(folder), records)


def names(folder: Path) -> list[str]:
    """Return the names in a folder, without the suffix that identifies the hub."""
    return sorted(path.name.rpartition("-")[0] for path in folder.iterdir())


def snapshot(version: int = 42, value: float = 1.0, **changes: Any) -> Snapshot:
    tensors = {f"weights/{i}": torch.full((5, 3), value).to(dtype) for i, dtype in enumerate(DTYPES)}
    tensors |= {"version": torch.tensor(version), "empty": torch.zeros(0)}
    what: dict[str, Any] = {
        "version": version,
        "records": 10 * version,
        "job": "abc",
        "hosts": {"": HostState({"open": ["w1:7"], "now": 1.5}, 10 * version)},
        "layout": {"sections": [{"dtype": "float32"}]},
        "tensors": tensors,
    }
    return Snapshot(**{**what, **changes})


def test_checkpoint_round_trips(tmp_path: Path) -> None:
    before = snapshot()
    path = save(tmp_path, before)
    assert [*tmp_path.iterdir()] == [path] == [tmp_path / "00000042-420-a1b2c3"]
    found = newest(tmp_path)
    assert (found.version, found.job, found.records, found.warnings) == (42, "abc", 420, ())
    after = found.load()
    assert (after.version, after.job, after.records) == (42, "abc", 420)
    assert (after.hosts, after.layout) == (before.hosts, before.layout)
    assert list(after.tensors) == list(load_file(path / "tensors.safetensors"))
    for name, tensor in before.tensors.items():
        assert after.tensors[name].dtype == tensor.dtype
        assert torch.equal(after.tensors[name], tensor)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["job"]) == (4, 42, "abc")
    assert set(manifest["files"]) == {"conductor.json", "tensors.safetensors"}


def test_newest_checkpoint_has_the_most_records(tmp_path: Path) -> None:
    """A run that resumed from an older version has a longer log."""
    for version in (9, 100_000_001, 99_999_999, 10):
        save(tmp_path, snapshot(version))
    assert newest(tmp_path).version == 100_000_001
    save(tmp_path, snapshot(12, 5.0, records=2_000_000_000))
    assert newest(tmp_path).load().tensors["weights/1"].flatten().tolist() == [5.0] * 15


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "lost": (Path.unlink, "missing_file"),
    "empty": (lambda path: path.write_bytes(b""), "wrong_size"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "wrong_size"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b" 1"), "wrong_size"),
    "list": (lambda path: path.write_bytes(b"[1, 2]"), "wrong_size"),
    "no text": (lambda path: path.write_bytes(b"\xff\xfe"), "wrong_size"),
    "nested": (lambda path: path.write_text("[" * 200_000), "wrong_size"),
    "folder": (make_folder, "damaged_file"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_checkpoint_warns_and_the_previous_one_is_used(tmp_path: Path, damage: str) -> None:
    change, code = DAMAGE[damage]
    for name in FILES if damage != "lost" else FILES[:2]:  # an unfinished checkpoint has no manifest
        save(tmp_path / name, snapshot(1))
        path = save(tmp_path / name, snapshot(2))
        change(path / name)
        found = newest(tmp_path / name)
        assert found.version == 1
        (warning,) = found.warnings
        check(warning, "damaged_file" if name == "manifest.json" else code, path=str(path))
        assert warning.fields.get("file", name) == name


@pytest.mark.parametrize("name", FILES)
def test_flipped_bits_are_detected(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, snapshot()) / name
    content = path.read_bytes()
    size = len(content)
    for place in [*range(0, size, max(1, size // 40)), size - 1]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(CheckpointError) as caught:
            newest(tmp_path)
        assert caught.value.code == "no_complete_checkpoint"
        (damage,) = caught.value.fields["damage"]
        others = {"damaged_file", "other_format"} if name == "manifest.json" else set()
        assert damage.code in {"wrong_checksum", *others}
        assert damage.fields["path"] == str(path.parent)
    path.write_bytes(content)
    assert newest(tmp_path).version == 42


def test_no_usable_checkpoint_raises_with_all_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    for folder in (tmp_path, tmp_path / "nowhere"):
        with raises(CheckpointError, "no_complete_checkpoint", path=str(folder), damage=[]):
            newest(folder)
    path = save(tmp_path, snapshot())
    later = save(tmp_path, snapshot(43))
    (later / "conductor.json").unlink()
    monkeypatch.setattr(checkpoint, "FORMAT", 5)
    with raises(CheckpointError, "no_complete_checkpoint") as caught:
        newest(tmp_path)
    damage = [(each.code, each.fields["path"]) for each in caught.fields["damage"]]
    assert damage == [("other_format", str(later)), ("other_format", str(path))]
    assert {each.fields["format"] for each in caught.fields["damage"]} == {4}
    monkeypatch.undo()
    (path / "conductor.json").unlink()
    with raises(CheckpointError, "no_complete_checkpoint") as caught:
        newest(tmp_path)
    damage = [(each.code, each.fields["path"]) for each in caught.fields["damage"]]
    assert damage == [("missing_file", str(later)), ("missing_file", str(path))]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tensors.safetensors", b"\x08\0\0\0\0\0\0\0[1, 2 ] "),
        ("tensors.safetensors", (2**60).to_bytes(8, "little") + b"{}"),
        ("tensors.safetensors", (20_000).to_bytes(8, "little") + b"[" * 10_000 + b"]" * 10_000),
        ("conductor.json", b"{"),
        ("conductor.json", b"[]"),
        ("conductor.json", b"[" * 10_000 + b"]" * 10_000),
    ],
    ids=["tensors", "long", "nested", "conductor", "list", "nested books"],
)
def test_damaged_files_raise_when_loaded(tmp_path: Path, name: str, content: bytes) -> None:
    path = save(tmp_path, snapshot())
    found = newest(tmp_path)
    (path / name).write_bytes(content)
    with raises(CheckpointError, "unreadable_file", path=str(path)):
        found.load()


# --- bad disks -----------------------------------------------------------------------------------


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def full_disk() -> Iterator[None]:
    with patch.object(os, "fsync", no_space):
        yield


@contextmanager
def file_limit() -> Iterator[None]:
    """Let the operating system limit the files of this process to 64 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("bad", "number"), [(full_disk, errno.ENOSPC), (file_limit, errno.EFBIG)], ids=["disk", "limit"]
)
def test_failed_write_raises_and_leaves_no_files(
    tmp_path: Path, bad: Callable[[], AbstractContextManager[None]], number: int
) -> None:
    path = save(tmp_path, snapshot(1))
    large = snapshot(2, tensors={"weights": torch.ones(100_000)})
    with bad(), pytest.raises(OSError, match=os.strerror(number)):
        save(tmp_path, large)
    assert [*tmp_path.iterdir()] == [path]
    assert newest(tmp_path).warnings == ()


class Killed(BaseException):
    """Exception that simulates a kill, without cleanup."""


@pytest.mark.parametrize("moment", range(4))
def test_unfinished_checkpoint_is_ignored(tmp_path: Path, moment: int) -> None:
    """The previous checkpoint stays complete. Leftovers are removed when the next checkpoint is complete."""
    saver = BackgroundWriter(Storage(tmp_path))
    saver.save(snapshot(1, 1.0))
    saver.wait()
    deeds = iter(range(100))
    really = Storage.write

    def killed_at(storage: Storage, name: str, pieces: Iterable[bytes]) -> dict[str, int]:
        if next(deeds) >= moment:
            raise Killed
        return really(storage, name, pieces)

    with patch.multiple(Storage, write=killed_at, remove=lambda *_: None), suppress(Killed):
        save(tmp_path, snapshot(2, 2.0))
    found = newest(tmp_path)
    assert found.version == (2 if moment == 3 else 1)
    assert found.warnings == (), "it was not finished, which is no damage"
    again = BackgroundWriter(Storage(tmp_path), keep=1, there=checkpoint.saved(Storage(tmp_path)))
    again.save(snapshot(3))
    assert again.close() == saver.close() == []
    assert names(tmp_path) == ["00000003-30"]


def test_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        places = [tmp_path, *tmp_path.rglob("*")]
        order.extend(p.name for p in places if p.stat().st_ino == os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    path = save(tmp_path, snapshot())
    assert order == [*(f"{name}.partial" for name in FILES), path.name, tmp_path.name]


# --- in the background ---------------------------------------------------------------------------


def test_log_is_synced_before_its_checkpoint_is_saved(tmp_path: Path) -> None:
    order = Mock()
    log = tmp_path / "records.jsonl"
    log.write_text("a record\n")
    saver = BackgroundWriter(Storage(tmp_path / "checkpoints"), lambda: {"": log})
    with patch.multiple(saver_module, sync_path=order.sync, save=order.save):
        saver.save(snapshot())
        assert saver.close() == []
    assert [call[0] for call in order.method_calls] == ["sync", "save"]
    assert order.sync.call_args.args == (log,)


def test_missing_log_is_reported_and_the_checkpoint_saved_later(tmp_path: Path) -> None:
    log, place = tmp_path / "records.jsonl", tmp_path / "checkpoints"
    saver = BackgroundWriter(Storage(place), lambda: {"": log})
    assert not saver.save(snapshot())
    (message,) = saver.problems()
    check(message, "checkpoint_not_written", path=str(place))
    log.write_text("a record\n")
    assert saver.save(snapshot())
    assert saver.close() == []
    assert saver.newest == newest(place).version == snapshot().version


def test_newest_three_are_kept_and_staging_memory_is_reused(tmp_path: Path) -> None:
    saver, places = BackgroundWriter(Storage(tmp_path)), []
    for version in range(1, 6):
        assert saver.save(snapshot(version))
        saver.wait()
        places.append({tensor.data_ptr() for tensor in saver._staged if tensor.numel()})
    assert saver.close() == []
    assert names(tmp_path) == ["00000003-30", "00000004-40", "00000005-50"]
    assert places == places[:1] * 5


def test_saving_copies_its_input_and_rejects_a_second_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    really = checkpoint.save

    def slow(*arguments: Any) -> str:
        assert go.wait(60)
        return really(*arguments)

    monkeypatch.setattr(saver_module, "save", slow)
    saver = BackgroundWriter(Storage(tmp_path))
    conductor = {"open": ["w1:7"]}
    given = snapshot(1, hosts={"": HostState(conductor, 10)})
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
    assert saved.hosts[""].conductor == {"open": ["w1:7"]}
    assert saved.tensors["weights/1"].flatten().tolist() == [1.0] * 15


def test_full_disk_is_reported_and_later_checkpoints_are_saved(tmp_path: Path) -> None:
    saver = BackgroundWriter(Storage(tmp_path))
    with full_disk():
        assert saver.save(snapshot(1))
        saver.wait()
    assert saver.save(snapshot(2))
    saver.wait()
    (message,) = saver.problems()
    check(message, "checkpoint_not_written", path=str(tmp_path))
    with full_disk():
        assert saver.save(snapshot(3))
        (message,) = saver.close()
    check(message, "checkpoint_not_written", path=str(tmp_path))
    assert newest(tmp_path).version == 2


def test_invalid_snapshot_raises(tmp_path: Path) -> None:
    saver = BackgroundWriter(Storage(tmp_path))
    with pytest.raises(TypeError):
        saver.save(snapshot(conductor={"rule": object()}))
    saver.save(snapshot(tensors={"a": torch.zeros(1, dtype=torch.complex128)}))
    saver.wait()
    with pytest.raises(KeyError):
        saver.problems()
    saver.close()
