"""Which ended jobs are similar to a new one."""

from math import exp

import pytest

from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.predict import job_names
from oddlot.queue.predict.duration_stats import DurationStats
from oddlot.queue.predict.history import JobHistory
from oddlot.queue.predict.job_names import NameIndex, bucket_of


def job(user: str = "ann", name: str = "train_resnet", gpus: int = 1) -> JobRequest:
    return JobRequest("j", 0.0, gpus=gpus, user=user, name=name)


def history(*rows: tuple[str, str, int, float]) -> JobHistory:
    found = JobHistory()
    for user, name, gpus, seconds in rows:
        assert found.add(job(user, name, gpus), seconds)
    return found


def seconds(found: JobHistory, one: JobRequest) -> float:
    stats = found.match(one).stats
    assert stats is not None
    return exp(stats.mean)


ROWS = (
    ("ann", "train_resnet", 1, 10.0),
    ("ann", "train_resnet", 4, 40.0),
    ("bob", "train_resnet", 1, 90.0),
    ("ann", "export", 1, 5.0),
)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (job(), 10.0),  # the user's jobs of this name with as many GPUs
        (job(gpus=4), 40.0),
        (job(user="bob", gpus=4), 90.0),  # the user's jobs of this name
        (job(user="eve", name="export"), 5.0),  # all jobs of this name
        (job(name="train_resnets"), 10.0),  # the most similar name
        (job(user="bob", name="zzzzqqqq"), 90.0),  # no similar name: the user's jobs
        (job(name="zzzzqqqq", gpus=4), 40.0),  # ... with as many GPUs
        (job(user="eve", name="zzzzqqqq", gpus=4), 40.0),  # a new user
    ],
)
def test_most_similar_jobs_are_found(asked: JobRequest, expected: float) -> None:
    assert seconds(history(*ROWS), asked) == pytest.approx(expected)


def test_numbers_in_names_make_no_other_name() -> None:
    found = history(("ann", "bert-lr0.1_2024-05-06", 1, 7.0), ("ann", "bert_large", 1, 100.0))
    match = found.match(job(name="bert-lr0.001_2024-06-30"))
    assert match.is_named
    assert match.bucket == bucket_of("bert-lr9_2025-01-01")
    assert exp(match.stats.mean) == pytest.approx(7.0)  # type: ignore[union-attr]


def test_match_is_not_named_without_similar_name() -> None:
    assert not history(*ROWS).match(job(name="zzzzqqqq")).is_named
    assert not history(*ROWS).match(job(name="")).is_named
    assert JobHistory().match(job()).stats is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_durations_that_are_no_numbers_are_ignored(bad: float) -> None:
    found = JobHistory()
    assert not found.add(job(), bad)
    assert not found.stats


def test_search_sees_names_that_were_added_later() -> None:
    index = NameIndex()
    index.add("train_res")
    assert index.nearest("train_resnet_a") == "train_res"
    index.add("train_resnet_b")
    assert index.nearest("train_resnet_a") == "train_resnet_b"
    index.add("export_vgg")
    assert index.nearest("train_resnet_a") == "train_resnet_b"
    assert index.nearest("zzz") == ""
    index.add("zzz")
    assert index.nearest("zzz") == "zzz"


def test_search_is_bounded_to_latest_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_names, "MAX_BUCKETS", 2)
    index = NameIndex()
    for name in ("train_resnet", "aaaaaaaa", "bbbbbbbb"):
        index.add(name)
    assert index.nearest("train_resnets") == ""


def test_very_long_name_is_cut() -> None:
    assert len(bucket_of("x" * 1_000_000)) == job_names.MAX_CHARACTERS


def test_older_durations_count_less() -> None:
    even, decayed = DurationStats(), DurationStats()
    for value in (1.0, 100.0, 100.0):
        even.add(value, 1.0)
        decayed.add(value, 0.5)
    assert exp(even.mean) == pytest.approx(100 ** (2 / 3))
    assert exp(decayed.mean) == pytest.approx(100 ** (1.5 / 1.75))
    assert even.deviation == pytest.approx(2.1709, abs=1e-4)
    assert even.last == pytest.approx(4.60517)
