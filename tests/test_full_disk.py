"""A real disk that is full or read-only: a small tmpfs, where this machine lets one be mounted."""

import subprocess
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from torch import nn

import oddlot
from oddlot import Asynchronous
from oddlot.core.errors import JobError, UsageError
from oddlot.train.checkpoint import newest
from oddlot.train.storage import Storage
from tests.fits import SAMPLES, a_job, everything, fleet
from tests.test_resume import merged


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Two and a half megabytes."""
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
    """A checkpoint of it, with momentum, takes 1.1 MB."""
    return nn.Sequential(nn.Linear(2, 28_000), nn.Tanh(), nn.Linear(28_000, 2))


def trains(disk: Path, until: str, resume: bool = False) -> oddlot.Run:
    return oddlot.fit(
        a_job(broad),
        Asynchronous(),
        fleet(1),
        until=until,
        out=disk / "run",
        checkpoint_every="2 versions",
        resume=resume,
    )


def test_a_disk_that_fills_up_leaves_the_old_checkpoint_intact(disk: Path) -> None:
    """Two checkpoints fit, the third does not: that is told, and the run can be gone on with once there is room."""
    with (
        pytest.warns(UserWarning, match=r"a checkpoint could not be written into .*No space left"),
        pytest.raises(
            JobError, match=r"cannot write .*(model\.safetensors|records\.jsonl).*make room, then resume"
        ),
    ):
        trains(disk, "epochs>=2")
    found = newest(Storage(disk / "run" / "checkpoints"))
    assert found.warnings == ()
    assert found.version > 0
    found.load()
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = trains(disk, "epochs>=3", resume=True)
    assert run.ended == "epochs>=3"
    assert merged(disk / "run") == everything(SAMPLES, 3)


def test_a_full_disk_is_told_before_anything_starts(disk: Path) -> None:
    with (disk / "rest").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(UsageError, match=r"cannot use .* as the run's folder: No space left on device"):
        trains(disk, "epochs>=2")


def test_a_read_only_folder_is_told_before_anything_starts(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(UsageError, match=r"cannot use .* as the run's folder: Read-only file system"):
        trains(disk, "epochs>=1")


def test_a_run_on_a_read_only_disk_cannot_be_gone_on_with_and_stays_as_it_is(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    trains(disk, "epochs>=1")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    with pytest.raises(UsageError, match=r"cannot use .* as the run's folder: Read-only file system"):
        trains(disk, "epochs>=2", resume=True)
    assert merged(disk / "run") == everything(SAMPLES, 1)
