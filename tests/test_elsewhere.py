"""Checkpoints in another place: a folder or a URL, from which another machine goes on."""

import errno
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import oddlot
from oddlot import Asynchronous, Run, Synchronous
from oddlot.core.errors import CheckpointError, UsageError
from oddlot.log import read_log
from oddlot.run_folder import RunFolder
from oddlot.train import saver
from oddlot.train.checkpoint import Snapshot, newest, saved
from oddlot.train.saver import BackgroundSaver
from oddlot.train.storage import Storage
from tests.fits import SAMPLES, a_job, equals, everything, fleet, trained
from tests.test_resume import merged


def begun(folder: Path, url: str | None, until: str = "epochs>=2", **options: Any) -> Run:
    options = {"checkpoint_every": "1 versions"} | options
    return oddlot.fit(a_job(), Asynchronous(), fleet(1), until=until, out=folder, checkpoints=url, **options)


def test_another_machine_goes_on_with_other_workers_and_exact_books(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "one", url)
    assert not (tmp_path / "one" / "checkpoints").exists()
    other = RunFolder(tmp_path / "other", url)
    other.fetch()
    run, _ = trained(a_job(), Asynchronous(), fleet(3), "epochs>=4", other, resume=True)
    assert merged(tmp_path / "other") == everything(SAMPLES, 4)
    lines = [(tmp_path / name / "records.jsonl").read_text().splitlines() for name in ("one", "other")]
    assert lines[1][: len(lines[0])] == lines[0], "the whole log has come along"
    assert run.summary["samples_wasted"] == 0
    again = oddlot.fit(
        a_job(),
        Asynchronous(),
        fleet(2),
        until="epochs>=5",
        out=tmp_path / "third",
        checkpoints=url,
        resume=True,
    )
    assert again.ended == "epochs>=5"
    assert merged(tmp_path / "third") == everything(SAMPLES, 5)


def test_a_resumed_run_remembers_where_its_checkpoints_are(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "run", url)
    oddlot.fit(a_job(), Asynchronous(), fleet(1), until="epochs>=3", out=tmp_path / "run", resume=True)
    assert checkpoints(url)[-1].startswith("00000018-")
    begun(tmp_path / "run", None, until="epochs>=1", force=True)
    assert checkpoints(url) == [], "force throws the old run away, wherever it is"
    assert (tmp_path / "run" / "checkpoints").exists()


def checkpoints(url: str) -> list[str]:
    """The oldest first."""
    return saved(Storage(url))


def savers(url: str, count: int = 2) -> list[tuple[BackgroundSaver, Snapshot]]:
    """Hubs that have gone on from the newest checkpoint at the same moment."""
    storage = Storage(url)
    there, found = saved(storage), newest(storage)
    return [(BackgroundSaver(storage, begun_from=found, there=there), found.load()) for _ in range(count)]


def test_no_run_takes_another_s_place(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "one", url)
    before = checkpoints(url)
    with pytest.raises(UsageError, match=r"is not empty: resume=True .*goes on with the run in it"):
        begun(tmp_path / "two", url)
    assert checkpoints(url) == before
    assert not (tmp_path / "two" / "run.json").exists()
    begun(tmp_path / "two", url, until="epochs>=1", force=True)
    assert checkpoints(url)[-1].startswith("00000006-")


def test_a_new_run_leaves_none_of_the_old_one_s_checkpoints(tmp_path: Path, url: str) -> None:
    begun(tmp_path, None)
    begun(tmp_path, url, force=True)
    assert not (tmp_path / "checkpoints").exists()


def test_so_many_are_kept_and_no_part_of_the_log_that_nobody_needs(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "MOST_PARTS", 3)
    begun(tmp_path / "run", url, until="epochs>=4", keep_checkpoints=2)
    storage = Storage(url)
    kept = checkpoints(url)
    assert len(kept) == 2
    logs = [json.loads(storage.read(f"{name}/manifest.json"))["log"] for name in kept]
    assert {part["name"].removeprefix("log/") for log in logs for part in log} == set(storage.names("log"))
    assert all(len(log) <= 3 for log in logs)
    assert (
        b"".join(storage.read(part["name"]) for part in logs[-1])
        == (tmp_path / "run" / "records.jsonl").read_bytes()
    )


def test_a_part_of_the_log_that_is_damaged_is_told_and_an_older_checkpoint_used(
    tmp_path: Path, url: str
) -> None:
    begun(tmp_path / "one", url)
    storage = Storage(url)
    *_, last = json.loads(storage.read(f"{checkpoints(url)[-1]}/manifest.json"))["log"]
    storage.write(last["name"], [b"nonsense"])
    with pytest.warns(UserWarning, match=r"jsonl has 8 of \d+ bytes; going on from"):
        begun(tmp_path / "two", url, until="epochs>=3", resume=True)
    assert merged(tmp_path / "two") == everything(SAMPLES, 3)
    for name in storage.names("log"):
        storage.write(f"log/{name}", [b"nonsense"])
    with pytest.raises(CheckpointError, match=r"no whole checkpoint in .*\n.*jsonl has 8 of \d+ bytes"):
        begun(tmp_path / "three", url, resume=True)
    assert not (tmp_path / "three").exists()


# --- what cannot be written, read or reached ----------------------------------------------------


def test_a_file_that_could_not_be_written_is_not_there(url: str) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise OSError("503")

    storage = Storage(url)
    with pytest.raises(OSError, match="503"):
        storage.write("log/part", pieces())
    assert storage.names("log") == []


def test_a_store_that_is_out_of_reach_for_a_while_is_written_again(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing and clearing away fail, and what was left behind is the run's own."""
    begun(tmp_path / "one", url)
    ((saver_, before),) = savers(url, 1)

    def out_of_reach(*_: object) -> None:
        raise OSError("503")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "sync", out_of_reach)
        patch.setattr(Storage, "remove", out_of_reach)
        saver_.save(replace(before, records=101))
        saver_.wait()
    assert "503; the run goes on" in saver_.problems()[0]
    assert saver_.save(replace(before, records=101)), "the same again, since it is not saved"
    saver_.wait()
    saver_.save(replace(before, records=102))
    assert saver_.close() == []
    assert newest(Storage(url)).records == 102


def test_nothing_is_removed_that_cannot_be_read(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path / "one", url)
    before = set(Storage(url).names("log"))

    def out_of_reach(*_: object) -> tuple[Any, ...]:
        raise OSError("503")

    with monkeypatch.context() as patch:
        patch.setattr(saver, "parts_of", out_of_reach)
        with pytest.warns(UserWarning, match="old checkpoints cannot be removed from .*: 503"):
            begun(tmp_path / "one", url, until="epochs>=4", resume=True)
    assert before <= set(Storage(url).names("log"))
    begun(tmp_path / "two", url, until="epochs>=5", resume=True)
    assert merged(tmp_path / "two") == everything(SAMPLES, 5)


def test_force_touches_nothing_that_is_no_run_s(tmp_path: Path, url: str) -> None:
    storage = Storage(url)
    for name in ("log/thesis.txt", "2024-11/photo.jpg"):
        storage.write(name, [b"mine"])
    with pytest.raises(UsageError, match="holds no run, so it is not thrown away: choose another place"):
        begun(tmp_path / "run", url, force=True)
    storage.write("run.json", [b"{}"])
    begun(tmp_path / "run", url, force=True)
    assert storage.read("log/thesis.txt") == storage.read("2024-11/photo.jpg") == b"mine"


def test_a_checkpoint_of_a_history_that_does_not_hold_never_comes_back(tmp_path: Path) -> None:
    """It could not be read once, and the run went on from an older one."""
    begun(tmp_path, None)
    names = saved(Storage(tmp_path / "checkpoints"))
    shutil.move(tmp_path / "checkpoints" / names[-1], tmp_path / "aside")
    begun(tmp_path, None, until="versions>=14", resume=True, keep_checkpoints=100)
    shutil.move(tmp_path / "aside", tmp_path / "checkpoints" / names[-1])
    for later in saved(Storage(tmp_path / "checkpoints")):
        if later not in names:
            shutil.rmtree(tmp_path / "checkpoints" / later)
    begun(tmp_path, None, until="epochs>=4", resume=True)
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_a_checkpoint_that_cannot_be_read_now_stops_the_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path, None)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "check", broken)
        with pytest.raises(CheckpointError, match=r"cannot be read: .*Input/output error; try again"):
            begun(tmp_path, None, until="epochs>=4", resume=True)
    begun(tmp_path, None, until="epochs>=4", resume=True)
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_a_relative_place_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begun(tmp_path / "run", "saved")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    begun(tmp_path / "run", None, until="epochs>=3", resume=True)
    assert merged(tmp_path / "run") == everything(SAMPLES, 3)


def test_what_cannot_be_reached_is_told_before_anything_starts(tmp_path: Path) -> None:
    for url, told in {"foo://bucket": "Protocol not known: foo", "s3://bucket/run": "Install s3fs"}.items():
        with pytest.raises(UsageError, match=rf"{url} cannot be reached: {told}"):
            begun(tmp_path / "run", url)
        assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="checkpoints are a part of a run's folder: name that with out="):
        oddlot.fit(a_job(), Synchronous(), equals(1), checkpoints="memory://a")
    with pytest.raises(CheckpointError, match="no whole checkpoint in memory://nothing"):
        begun(tmp_path / "run", "memory://nothing", resume=True)


def test_a_place_without_checkpoints_is_none_to_go_on_from(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "run", None)
    with pytest.raises(
        UsageError, match=r"holds no checkpoint, those of .* are in .*: leave checkpoints out"
    ):
        begun(tmp_path / "run", url, until="epochs>=3", resume=True)
    begun(tmp_path / "run", None, until="epochs>=3", resume=True)
    assert merged(tmp_path / "run") == everything(SAMPLES, 3)


def test_settings_that_are_damaged_there_are_not_fetched(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "one", url)
    Storage(url).write("run.json", [b'{"format": 1}'])
    with pytest.raises(CheckpointError, match=r"run\.json is damaged: restore it from a copy$"):
        begun(tmp_path / "two", url, resume=True)
    assert not (tmp_path / "two").exists()


def test_a_store_that_fails_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object store has errors of its own."""

    class Unreachable(Exception):
        pass

    opened = MemoryFileSystem.open

    def fails(self: MemoryFileSystem, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode == "wb" and "00000000-" not in path and "run.json" not in path and "0-0" not in path:
            raise Unreachable("no route")
        return opened(self, path, mode, **options)

    monkeypatch.setattr(MemoryFileSystem, "open", fails)
    with pytest.warns(
        UserWarning,
        match="into memory://b: Unreachable: no route(; the run goes on|. The model is saved)",
    ):
        run = begun(tmp_path / "run", "memory://b")
    assert run.ended == "epochs>=2"
    assert len(list(read_log(tmp_path / "run" / "records.jsonl"))) == run.summary["records"]
