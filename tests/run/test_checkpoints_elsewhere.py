"""Checkpoints in a separate folder or URL. Another machine resumes the run from there."""

import errno
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import Asynchronous, Run, Synchronous
from oddlot.checkpoint import background_writer as saver
from oddlot.checkpoint.background_writer import BackgroundWriter
from oddlot.checkpoint.format import Snapshot, check_log, newest, saved
from oddlot.checkpoint.storage import Storage
from oddlot.core.support.errors import CheckpointError, UsageError
from oddlot.history.resume_mode import resumes
from oddlot.history.run_folder import RunFolder
from tests.command import Oddlot
from tests.fits import SAMPLES, a_job, equals, everything, fleet, trained
from tests.run.test_resume import begun as begun_in, merged, saved_at_once
from tests.transcripts import check, raises, warns


def begun(folder: Path, url: str | None, until: str = "epochs>=2", **options: Any) -> Run:
    return begun_in(folder, until, checkpoints=url, **options)


def test_resume_on_another_machine_merges_every_sample_once(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "one", url)
    assert not (tmp_path / "one" / "checkpoints").exists()
    other = RunFolder(tmp_path / "other", url)
    assert resumes(other, "latest")
    run, _ = trained(a_job(), Asynchronous(), fleet(3), "epochs>=4", other, resume=True)
    assert merged(tmp_path / "other") == everything(SAMPLES, 4)
    lines = [(tmp_path / name / "records.jsonl").read_text().splitlines() for name in ("one", "other")]
    assert lines[1][: len(lines[0])] == lines[0], "the whole log has come along"
    assert run.summary["samples_wasted"] == 0
    assert begun(tmp_path / "third", url, until="epochs>=5", resume="latest").ended == "epochs>=5"
    assert merged(tmp_path / "third") == everything(SAMPLES, 5)


def test_resume_uses_the_saved_checkpoint_location(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "run", None, until="epochs>=1")
    begun(tmp_path / "run", url, force=True)
    assert not (tmp_path / "run" / "checkpoints").exists()
    begun(tmp_path / "run", None, until="epochs>=3", resume="latest")
    assert checkpoints(url)[-1].startswith("00000018-")
    begun(tmp_path / "run", None, until="epochs>=1", force=True)
    assert checkpoints(url) == [], "force throws the old run away, wherever it is"
    assert (tmp_path / "run" / "checkpoints").exists()


def checkpoints(url: str) -> list[str]:
    """Return the names of all checkpoints, oldest first."""
    return saved(Storage(url))


def test_different_log_of_same_length_is_rejected(tmp_path: Path, url: str) -> None:
    begun(tmp_path, url)
    log, found = tmp_path / "records.jsonl", newest(Storage(url))
    check_log(found, log)
    log.write_text(log.read_text().replace('"samples":8', '"samples":7', 1))
    with raises(CheckpointError, "resumed_on_other_machine", log=str(log)):
        check_log(found, log)


def savers(url: str, count: int = 2) -> list[tuple[BackgroundWriter, Snapshot]]:
    """Return writers and snapshots of `count` hubs that resume from the newest checkpoint at the same time."""
    storage = Storage(url)
    there, found = saved(storage), newest(storage)
    return [(BackgroundWriter(storage, begun_from=found, there=there), found.load()) for _ in range(count)]


def test_checkpoint_location_of_another_run_is_rejected(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "one", url)
    before = checkpoints(url)
    with raises(UsageError, "folder_not_empty", path=url):
        begun(tmp_path / "two", url)
    Storage(url).write("run.json", [b'{"format": 2}'])
    with raises(CheckpointError, "damaged_file", path=f"{url}/run.json"):
        begun(tmp_path / "two", url, resume="latest")
    assert checkpoints(url) == before
    assert not (tmp_path / "two" / "run.json").exists()
    begun(tmp_path / "two", url, until="epochs>=1", force=True)
    assert checkpoints(url)[-1].startswith("00000006-")


def test_old_checkpoints_and_unused_log_parts_are_removed(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "MAX_PARTS", 3)
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


def test_damaged_log_part_falls_back_to_older_checkpoint(tmp_path: Path, url: str) -> None:
    with saved_at_once():
        begun(tmp_path / "one", url)
    storage, name = Storage(url), checkpoints(url)[-1]
    *_, last = json.loads(storage.read(f"{name}/manifest.json"))["log"]
    storage.write(last["name"], [bytes(last["bytes"])])
    message = {
        "damage": "wrong_checksum",
        "path": storage.path(name),
        "file": last["name"].removeprefix("log/"),
    }
    with warns("damaged_checkpoint_skipped", **message), saved_at_once():
        begun(tmp_path / "two", url, until="epochs>=3", resume="latest")
    assert merged(tmp_path / "two") == everything(SAMPLES, 3)
    for name in storage.names("log"):
        storage.write(f"log/{name}", [bytes(len(storage.read(f"log/{name}")))])
    with raises(CheckpointError, "no_complete_checkpoint", path=url) as caught:
        begun(tmp_path / "three", url, resume="latest")
    assert {each.code for each in caught.fields["damage"]} == {"wrong_checksum"}
    assert not (tmp_path / "three").exists()


# --- locations that cannot be written, read or reached --------------------------------------------


def test_failed_write_leaves_no_file(url: str) -> None:
    """A failed write leaves no file after any type of error: each object store raises its own types."""

    class Unreachable(Exception):
        pass

    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise Unreachable("503")

    storage = Storage(url)
    with pytest.raises(OSError, match="503"):
        storage.write("log/part", pieces())
    assert storage.names("log") == []


def test_failed_checkpoint_write_is_retried_later(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing and removing fail for a while. Leftovers of the run itself do not prevent later checkpoints."""
    begun(tmp_path / "one", url)
    ((saver_, before),) = savers(url, 1)

    def out_of_reach(*_: object) -> None:
        raise OSError("503")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "sync", out_of_reach)
        patch.setattr(Storage, "remove", out_of_reach)
        saver_.save(replace(before, records=101))
        saver_.wait()
    (message,) = saver_.problems()
    check(message, "checkpoint_not_written", path=url, reason="503")
    assert saver_.save(replace(before, records=101)), "the same again, since it is not saved"
    saver_.wait()
    saver_.save(replace(before, records=102))
    assert saver_.close() == []
    assert newest(Storage(url)).records == 102


def test_unreadable_checkpoints_keep_their_log_parts(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(tmp_path / "one", url)
    before = set(Storage(url).names("log"))

    def out_of_reach(*_: object) -> tuple[Any, ...]:
        raise OSError("503")

    with monkeypatch.context() as patch:
        patch.setattr(saver, "parts_of", out_of_reach)
        with warns("old_checkpoints_not_removed", path=url, reason="503"), saved_at_once():
            begun(tmp_path / "one", url, until="epochs>=4", resume="latest")
    assert before <= set(Storage(url).names("log"))
    begun(tmp_path / "two", url, until="epochs>=5", resume="latest")
    assert merged(tmp_path / "two") == everything(SAMPLES, 5)


def test_force_keeps_unrelated_files(tmp_path: Path, url: str) -> None:
    storage = Storage(url)
    for name in ("log/thesis.txt", "2024-11/photo.jpg"):
        storage.write(name, [b"mine"])
    with raises(UsageError, "not_a_run", path=url):
        begun(tmp_path / "run", url, force=True)
    storage.write("run.json", [b"{}"])
    begun(tmp_path / "run", url, force=True)
    assert storage.read("log/thesis.txt") == storage.read("2024-11/photo.jpg") == b"mine"


def test_checkpoint_of_an_abandoned_history_is_ignored(tmp_path: Path) -> None:
    """After the run has resumed from an older checkpoint, a newer one that becomes readable again is ignored."""
    begun(tmp_path, None)
    names = saved(Storage(tmp_path / "checkpoints"))
    shutil.move(tmp_path / "checkpoints" / names[-1], tmp_path / "aside")
    begun(tmp_path, None, until="versions>=14", resume="latest", keep_checkpoints=100)
    shutil.move(tmp_path / "aside", tmp_path / "checkpoints" / names[-1])
    for later in saved(Storage(tmp_path / "checkpoints")):
        if later not in names:
            shutil.rmtree(tmp_path / "checkpoints" / later)
    begun(tmp_path, None, until="epochs>=4", resume="latest")
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_unreadable_checkpoint_stops_the_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(tmp_path, None)
    path = tmp_path / "checkpoints" / saved(Storage(tmp_path / "checkpoints"))[-1]

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "check", broken)
        with raises(CheckpointError, "unreadable_file", path=str(path)):
            begun(tmp_path, None, until="epochs>=4", resume="latest")
    begun(tmp_path, None, until="epochs>=4", resume="latest")
    assert merged(tmp_path) == everything(SAMPLES, 4)


def test_relative_checkpoint_path_works_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun(tmp_path / "run", "saved")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    begun(tmp_path / "run", None, until="epochs>=3", resume="latest")
    assert merged(tmp_path / "run") == everything(SAMPLES, 3)


def test_unreachable_checkpoint_location_fails_before_the_run(tmp_path: Path) -> None:
    for url, named in {"foo://bucket": "foo", "s3://bucket/run": "s3fs"}.items():
        with raises(UsageError, "unreachable_location", url=url) as caught:
            begun(tmp_path / "run", url)
        assert named in caught.fields["reason"]
        assert not (tmp_path / "run").exists()
    with raises(UsageError, "missing_setting", name="out") as caught:
        oddlot.fit(a_job(), Synchronous(), equals(1), checkpoints="memory://a")
    assert caught.value.key == "checkpoints"
    with raises(CheckpointError, "no_complete_checkpoint", path="memory://nothing", damage=[]):
        begun(tmp_path / "run", "memory://nothing", resume="latest")


def test_checkpoint_url_password_is_hidden(tmp_path: Path, oddlot: Oddlot) -> None:
    """Only run.json has the password, because resuming the run needs it. No one else may read the file."""
    url, shown = "memory://user:s3cr3t@bucket/run", "memory://user:***@bucket/run"
    storage, run = Storage(url), tmp_path / "run"
    begun(run, url)
    begun(run, None, until="epochs>=3", resume="latest")
    assert merged(run) == everything(SAMPLES, 3)
    files = [path for path in run.rglob("*") if path.is_file() and b"s3cr3t" in path.read_bytes()]
    assert [(path.name, path.stat().st_mode & 0o777) for path in files] == [("run.json", 0o600)]
    assert run.joinpath("model.safetensors").stat().st_mode == run.joinpath("records.jsonl").stat().st_mode
    assert b"s3cr3t" not in storage.read("run.json")
    with raises(UsageError, "folder_not_empty", path=shown):
        begun(tmp_path / "other", url)
    with raises(UsageError, "unreachable_location", url="foo://user:***@bucket"):
        Storage("foo://user:s3cr3t@bucket")
    with pytest.raises(FileNotFoundError) as caught:
        storage.read("nothing")
    message = oddlot("report", str(run)).out + oddlot("report", str(run), "--json").out
    assert shown in message
    texts = [message, str(storage), storage.path("x"), str(caught.value), *map(str, caught.value.args)]
    assert not any("s3cr3t" in text for text in texts)
    storage.remove("")


def test_resume_with_another_checkpoint_location_is_rejected(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "run", None)
    begun_there = str(tmp_path / "run" / "checkpoints")
    with raises(UsageError, "checkpoints_in_other_location", given=url, begun=begun_there):
        begun(tmp_path / "run", url, until="epochs>=3", resume="latest")
    begun(tmp_path / "run", None, until="epochs>=3", resume="latest")
    assert merged(tmp_path / "run") == everything(SAMPLES, 3)
