"""Profiles of jobs: measurements, the knee, and profile files."""

from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from oddlot.config.profile_file import read_profile, write_profile
from oddlot.core.support.errors import JobError, UsageError
from oddlot.planner import profile as profiles
from oddlot.planner.profile import BatchTime, Profile, profile, this_machine
from oddlot.wire.registry import CODECS
from tests.command import Oddlot
from tests.fits import a_job
from tests.transcripts import raises


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "TRIAL_SECONDS", 0.002)


def a_profile(*batches: tuple[int, float]) -> Profile:
    return Profile(
        job="small",
        parameters=3,
        machine="m",
        threads=1,
        seconds_by_threads={1: 0.1},
        batches=tuple(BatchTime(batch, seconds, 1) for batch, seconds in batches),
        knee=8,
        is_limited_by_memory=False,
        bytes_down=10,
        bytes_up={"plain": 10},
        merge_seconds=0.1,
    )


def test_profile_measures_the_job() -> None:
    steps: list[str] = []
    found = profile(a_job(), steps.append)
    assert [each.batch for each in found.batches[:3]] == [1, 2, 4]
    assert all(each.seconds_per_sample > 0 for each in found.batches)
    assert found.knee in {each.batch for each in found.batches}
    assert found.threads in found.seconds_by_threads
    assert found.bytes_up.keys() == {*CODECS}
    assert found.bytes_up["bf16"] < found.bytes_up["nonzero"]
    assert found.bytes_down > 0
    assert found.merge_seconds > 0
    assert steps
    found.check(a_job(), this_machine())


def test_batches_double_until_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "_memory_bytes", lambda: 0)
    found = profile(a_job())
    assert ([each.batch for each in found.batches], found.is_limited_by_memory) == ([1], True)


def test_knee_is_the_smallest_batch_that_is_hardly_slower() -> None:
    times = [BatchTime(1, 8.0, 1), BatchTime(2, 4.1, 1), BatchTime(4, 4.05, 1), BatchTime(8, 4.0, 1)]
    assert profiles._knee(times) == 2
    assert a_profile((1, 8.0), (2, 4.0)).batching_speedup == 2.0


def test_seconds_between_measured_batches_are_interpolated() -> None:
    found = a_profile((1, 2.0), (3, 1.0))
    assert [found.seconds_per_sample(batch) for batch in (1, 2, 3, 4)] == pytest.approx([2.0, 1.25, 1.0, 1.0])


def test_profile_of_another_job_or_machine_is_rejected() -> None:
    found = profile(a_job())
    with raises(UsageError, "other_profile", name="machine"):
        found.check(a_job(), "another")
    with raises(UsageError, "other_profile", name="parameters"):
        replace(found, parameters=1).check(a_job(), this_machine())


def test_file_keeps_the_profile(tmp_path: Path) -> None:
    found = a_profile((1, 8.0), (2, 4.0))
    write_profile(found, tmp_path / "profile.toml")
    assert read_profile(tmp_path / "profile.toml") == found


@pytest.mark.parametrize("text", ["", "job = 3", "not toml", "[[batches]]\nbatch = 'x'"])
def test_invalid_file_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "profile.toml").write_text(text)
    with raises(UsageError, "invalid_profile"):
        read_profile(tmp_path / "profile.toml")


def test_missing_file_and_folder_are_rejected(tmp_path: Path) -> None:
    with raises(UsageError, "unreadable_file"):
        read_profile(tmp_path / "none.toml")
    with raises(UsageError, "unwritable_file"):
        write_profile(a_profile((1, 1.0)), tmp_path / "none" / "profile.toml")


def test_command_prints_and_writes_a_profile(oddlot: Oddlot) -> None:
    shown = oddlot.json("profile", "my_jobs:small", "--out", "profile.toml")
    assert shown["knee"] == read_profile("profile.toml").knee
    assert "(knee)" in oddlot("profile", "my_jobs:small", "--quiet").out


def test_exception_of_the_job_is_a_job_error() -> None:
    def broken(*_: object) -> Tensor:
        raise RuntimeError("no")

    with raises(JobError, "user_code_failed", where="this machine"):
        profile(a_job(loss=broken))
