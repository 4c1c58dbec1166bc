"""Checkpoints in another place: a folder or a URL, from which another machine goes on."""

import json
from collections.abc import Iterator
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
from oddlot.train.checkpoint import Snapshot, newest
from oddlot.train.saver import BackgroundSaver
from oddlot.train.storage import Storage
from tests.fits import SAMPLES, a_job, equals, everything, fleet, trained
from tests.test_resume import merged


@pytest.fixture(params=["memory://bucket/run", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A place outside the run's folder."""
    MemoryFileSystem.store.clear()
    yield request.param if "://" in request.param else str(tmp_path / "elsewhere")
    MemoryFileSystem.store.clear()


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
    return [name for name in Storage(url).names() if name[0].isdigit()]


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


def test_a_part_of_the_log_that_is_damaged_is_told(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "one", url)
    storage = Storage(url)
    for name in storage.names("log"):
        storage.write(f"log/{name}", [b"nonsense"])
    with pytest.raises(CheckpointError, match=r"cannot be gone on from: .*jsonl has 8 of \d+ bytes"):
        begun(tmp_path / "two", url, resume=True)
    assert not (tmp_path / "two").exists()


def test_two_machines_at_one_run_do_not_remove_each_other_s_checkpoints(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "one", url)
    storage = Storage(url)
    mine, theirs = BackgroundSaver(storage), BackgroundSaver(storage)
    snapshot = newest(storage).load()
    for who, records in ((mine, 101), (theirs, 102), (mine, 103)):
        who.save(Snapshot(9, records, "job", {}, {}, snapshot.tensors))
        who.wait()
    (told,) = mine.close()
    assert "00000009-102 in it is another process's: one run can have it at a time" in told
    assert theirs.close() == []
    assert {"00000009-101", "00000009-102"} <= set(checkpoints(url))


def test_what_cannot_be_reached_is_told_before_anything_starts(tmp_path: Path) -> None:
    for url, told in {"foo://bucket": "Protocol not known: foo", "s3://bucket/run": "Install s3fs"}.items():
        with pytest.raises(UsageError, match=rf"{url} cannot be reached: {told}"):
            begun(tmp_path / "run", url)
        assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="checkpoints are a part of a run's folder: name that with out="):
        oddlot.fit(a_job(), Synchronous(), equals(1), checkpoints="memory://a")
    with pytest.raises(CheckpointError, match="no whole checkpoint in memory://nothing"):
        begun(tmp_path / "run", "memory://nothing", resume=True)


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
        UserWarning, match=r"could not be written into memory://b: Unreachable: no route; the run"
    ):
        run = begun(tmp_path / "run", "memory://b")
    assert run.ended == "epochs>=2"
    assert len(list(read_log(tmp_path / "run" / "records.jsonl"))) == run.summary["records"]
