"""Several machines that share a checkpoint location: only one of them continues the run."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem
from torch import Tensor
from torch.nn.functional import cross_entropy

import oddlot
from oddlot import Asynchronous
from oddlot.checkpoint.format import newest
from oddlot.checkpoint.storage import Storage
from oddlot.core.commands import Step
from oddlot.core.records import Record
from oddlot.core.support.errors import CheckpointError, JobError, UsageError
from oddlot.history.folder_owner import claim, make_room
from oddlot.history.run_folder import RunFolder
from tests.fits import SAMPLES, a_job, everything, fleet
from tests.run.test_checkpoints_elsewhere import begun, checkpoints, savers
from tests.run.test_resume import merged
from tests.sealed import reseal
from tests.transcripts import raises


def test_resume_from_an_outdated_folder_is_rejected(tmp_path: Path, url: str) -> None:
    begun(tmp_path / "one", url, until="epochs>=1")
    begun(tmp_path / "two", url, until="epochs>=2", resume="latest")
    with raises(CheckpointError, "resumed_on_other_machine", records=15, sound=7):
        begun(tmp_path / "one", url, until="epochs>=3", resume="latest")
    assert checkpoints(url)[-1].startswith("00000012-")


def test_second_machine_stops_or_is_rejected(tmp_path: Path, url: str) -> None:
    """The first machine locks a folder. In an object store, the second machine takes over, and the first one stops."""
    is_folder, tried = "://" not in url, list[None]()

    def second(record: Record) -> None:
        if not tried and any(isinstance(action, Step) for action in record.actions):
            tried.append(None)
            with raises(UsageError, "folder_in_use", path=url) if is_folder else nullcontext():
                begun(tmp_path / "two", url, until="epochs>=2", resume="latest")

    if not is_folder:
        with raises(JobError, "resumed_on_other_machine"):
            begun(tmp_path / "one", url, until="epochs>=4", callbacks=[second])
        assert merged(tmp_path / "two") == everything(SAMPLES, 2)
    else:
        begun(tmp_path / "one", url, until="epochs>=4", callbacks=[second])
        assert tried
        assert merged(tmp_path / "one") == everything(SAMPLES, 4)


def test_checkpoint_location_in_use_is_rejected(tmp_path: Path) -> None:
    place = tmp_path / "place"
    begun(tmp_path / "one", str(place), until="epochs>=1")
    holder = RunFolder(tmp_path / "one", place)
    for how in ({}, {"resume": "latest"}):
        with claim(holder, resume=True, force=False), raises(UsageError, "folder_in_use", path=str(place)):
            begun(tmp_path / "two", str(place), until="epochs>=2", **how)
    begun(tmp_path / "two", str(place), until="epochs>=2", resume="latest")
    assert merged(tmp_path / "two") == everything(SAMPLES, 2)


def test_user_error_is_reported_after_a_takeover(tmp_path: Path) -> None:
    """The conflict is found when the failed run saves its state."""
    MemoryFileSystem.store.clear()
    calls: list[int] = []

    def breaks(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 5:
            begun(tmp_path / "two", "memory://a", until="epochs>=1", resume="latest")
            raise OSError("mine")
        return cross_entropy(outputs, targets)

    options: dict[str, Any] = {"until": "epochs>=4", "out": tmp_path / "one", "checkpoints": "memory://a"}
    with raises(JobError, "user_code_failed") as caught:
        oddlot.fit(a_job(loss=breaks), Asynchronous(), fleet(1), **options)
    assert "OSError: mine" in caught.fields["reason"]
    MemoryFileSystem.store.clear()


def test_outdated_longer_log_is_not_mixed_with_the_newer_one(tmp_path: Path, url: str) -> None:
    """Another machine has resumed its run in the meantime."""
    begun(tmp_path / "one", url, until="epochs>=1", checkpoint_every="100 versions")
    shutil.copytree(tmp_path / "one", tmp_path / "old")
    log = tmp_path / "old" / "records.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    more = b'{"is":"Record","now":9.0,"event":{"is":"Ticked"},"actions":[],"remark":""}\n'
    log.write_bytes(b"".join([*lines, *[more] * 40]))
    reseal(log)
    begun(tmp_path / "two", url, until="epochs>=2", resume="latest")
    with raises(CheckpointError, "resumed_on_other_machine", log=str(log)):
        begun(tmp_path / "old", url, until="epochs>=3", resume="latest")
    begun(tmp_path / "new", url, until="epochs>=3", resume="latest")
    assert merged(tmp_path / "new") == everything(SAMPLES, 3)


def test_two_machines_keep_each_others_checkpoints(tmp_path: Path, url: str) -> None:
    """Checkpoints of other machines are kept even if their names would be the same."""
    begun(tmp_path / "one", url)
    (mine, before), (theirs, _) = savers(url)
    for who, records in ((mine, 101), (theirs, 101), (mine, 103)):
        who.save(replace(before, records=records))
        who.wait()
    with raises(JobError, "resumed_on_other_machine"):
        theirs.problems()
    assert not theirs.save(replace(before, records=105))
    assert theirs.close() == mine.close() == []
    assert sum("-101-" in name for name in checkpoints(url)) == 1
    assert newest(Storage(url)).records == 103


def test_run_started_by_another_machine_is_not_deleted(tmp_path: Path, url: str) -> None:
    folder = RunFolder(tmp_path / "late", url)
    with claim(folder, resume=False, force=False):
        if "://" not in url:
            with raises(UsageError, "folder_in_use", path=url):
                begun(tmp_path / "quick", url)
            return
        begun(tmp_path / "quick", url)
        with raises(UsageError, "folder_not_empty", path=url):
            make_room(folder)
    assert len(checkpoints(url)) == 3
