"""Disks that are full or read-only. The disk is a small tmpfs, if this machine can mount one."""

import errno
import os
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import oddlot
from oddlot.checkpoint.format import newest
from oddlot.checkpoint.storage import Storage
from oddlot.core.support.errors import JobError, UsageError
from tests.fits import SAMPLES, a_job, everything
from tests.run.test_resume import begun, merged, saved_at_once
from tests.transcripts import Caught, raises, warns


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the path of a disk with 2.5 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2560k", "oddlot", str(path)]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def broad() -> nn.Module:
    """Return a network with checkpoints of 1.1 MB, including momentum."""
    return nn.Sequential(nn.Linear(2, 28_000), nn.Tanh(), nn.Linear(28_000, 2))


def trains(disk: Path, until: str, name: str = "run", **options: Any) -> oddlot.Run:
    return begun(disk / name, until, a_job(broad), checkpoint_every="2 versions", **options)


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


def rejected(folder: Path, number: int) -> AbstractContextManager[Caught]:
    return raises(UsageError, "unusable_folder", path=str(folder), reason=os.strerror(number))


def test_full_disk_keeps_the_old_checkpoint(disk: Path) -> None:
    """Two checkpoints fit, and the third one causes a warning. The run can be resumed once there is space."""
    folder = disk / "run"
    with (
        warns("checkpoint_not_written", path=str(folder / "checkpoints")),
        raises(JobError, "unwritable_file", path=str(folder / "model.safetensors")),
        saved_at_once(),
    ):
        trains(disk, "epochs>=2")
    found = newest(Storage(disk / "run" / "checkpoints"))
    assert found.warnings == ()
    assert found.version > 0
    found.load()
    remount(disk, "size=64m")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = trains(disk, "epochs>=3", resume="latest")
    assert run.ended == "epochs>=3"
    assert merged(disk / "run") == everything(SAMPLES, 3)


def test_full_or_read_only_disk_fails_before_the_run(disk: Path) -> None:
    """The run on a read-only disk cannot be resumed and stays unchanged."""
    remount(disk, "size=64m")
    trains(disk, "epochs>=1")
    with (disk / "rest").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    with rejected(disk / "other", errno.ENOSPC):
        trains(disk, "epochs>=2", name="other")
    remount(disk, "ro")
    with rejected(disk / "other", errno.EROFS):
        trains(disk, "epochs>=1", name="other")
    with rejected(disk / "run", errno.EROFS):
        trains(disk, "epochs>=2", resume="latest")
    assert merged(disk / "run") == everything(SAMPLES, 1)
