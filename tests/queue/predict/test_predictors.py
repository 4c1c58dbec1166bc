"""Predictions: what they may know, and how well they fit."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from math import exp, inf, log, nan
from random import Random
from statistics import fmean, median

import pytest

from oddlot.core.support.errors import InvalidValue, UsageError
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.predict import error_model, learnt
from oddlot.queue.predict.error_range import WINDOW, ErrorRange
from oddlot.queue.predict.learnt import LearntPredictor
from oddlot.queue.predict.predictor import LONGEST_SECONDS, Prediction, Predictor
from oddlot.queue.predict.predictor_registry import predictor_of, taught_predictor
from oddlot.queue.predict.rolling import RollingPredictor
from oddlot.queue.traces.generated import RecurrentJobs
from oddlot.queue.traces.trace import TraceJob
from tests.transcripts import raises

KINDS: list[Callable[[], Predictor]] = [RollingPredictor, LearntPredictor]
JOBS = RecurrentJobs(jobs=600, templates=30, users=8).trace().jobs


def replayed(predictor: Predictor, jobs: Iterable[TraceJob]) -> list[Prediction]:
    """Return the predictions at the submissions, if every job starts at once."""
    running, found = list[tuple[float, int, TraceJob]](), list[Prediction]()
    for number, job in enumerate(jobs):
        now = job.request.submitted
        for end, _, ended in sorted(one for one in running if one[0] <= now):
            predictor.observe(ended.request, ended.duration, end)
        running = [one for one in running if one[0] > now]
        found.append(predictor.predict(job.request, now))
        running.append((now + job.duration, number, job))
    return found


def error(found: list[Prediction], jobs: Iterable[TraceJob]) -> float:
    return float(
        fmean((log(one.seconds) - log(job.duration)) ** 2 for one, job in zip(found, jobs, strict=True))
        ** 0.5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_prediction_depends_on_what_comes_later(kind: Callable[[], Predictor]) -> None:
    kept, random = 400, Random(1)
    until = JOBS[kept].request.submitted
    found = replayed(kind(), JOBS)[: kept + 1]
    later = list(JOBS[kept + 1 :])
    random.shuffle(later)
    other = RecurrentJobs(jobs=600, templates=30, users=8, seed=9).trace().jobs[kept + 1 :]
    for changed in (later, other):
        moved = [
            TraceJob(
                JobRequest(
                    f"x{number}", until + number, gpus=3, user=one.request.user, name=one.request.name
                ),
                1e6,
            )
            for number, one in enumerate(changed)
        ]
        # jobs that still run then end later, too: their durations are part of what comes later
        known = [
            one
            if one.request.submitted + one.duration <= until
            else TraceJob(one.request, until - one.request.submitted + 1.0 + random.random() * 1e6)
            for one in JOBS[: kept + 1]
        ]
        assert replayed(kind(), [*known, *moved])[: kept + 1] == found  # bit for bit


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_contain_the_share_that_they_promise(kind: Callable[[], Predictor]) -> None:
    jobs = RecurrentJobs(jobs=2_000, templates=30, users=8).trace().jobs
    found = list(zip(replayed(kind(), jobs), jobs, strict=True))[500:]
    assert all(0 < one.low <= one.seconds <= one.high <= LONGEST_SECONDS for one, _ in found)
    below = fmean(job.duration < one.low for one, job in found)
    above = fmean(job.duration > one.high for one, job in found)
    assert 0.06 <= below <= 0.14
    assert 0.06 <= above <= 0.14


def test_learnt_is_better_than_rolling_and_rolling_than_nothing() -> None:
    jobs = RecurrentJobs(jobs=4_000).trace().jobs
    rolling, merged = (error(replayed(kind(), jobs), jobs) for kind in KINDS)
    middle = exp(fmean(log(job.duration) for job in jobs))
    nothing = error([Prediction(middle, middle, middle)] * len(jobs), jobs)
    assert merged < 0.96 * rolling
    assert rolling < 0.8 * nothing


def test_model_learns_what_no_mean_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """At night, the jobs without names of a cluster take a hundred times longer."""
    random = Random(3)
    jobs = [
        TraceJob(
            JobRequest(str(number), number * 600.0, gpus=1, user="ann"),
            100.0 * (100 if number * 600 % 86_400 < 43_200 else 1) * exp(random.gauss(0, 0.1)),
        )
        for number in range(2_000)
    ]
    with_model = error(replayed(LearntPredictor(), jobs)[1_500:], jobs[1_500:])
    monkeypatch.setattr(learnt, "FIRST_JOBS", 10**9)
    without = error(replayed(LearntPredictor(10**9), jobs)[1_500:], jobs[1_500:])
    assert with_model < 0.6 * without


@pytest.mark.parametrize("kind", KINDS)
def test_estimate_counts_until_history_has_the_name(kind: Callable[[], Predictor]) -> None:
    predictor = kind()
    job = JobRequest("1", 0.0, gpus=1, user="ann", name="train")
    assert predictor.predict(job, 0.0, 5_000.0).seconds == pytest.approx(5_000.0)
    assert predictor.predict(job, 0.0, nan).seconds > 0
    assert predictor.predict(job, 0.0, inf).seconds <= LONGEST_SECONDS
    other = JobRequest("2", 0.0, gpus=1, user="ann", name="zzzzqqqq")
    predictor.observe(other, 10.0, 1.0)
    assert predictor.predict(job, 2.0, 5_000.0).seconds == pytest.approx(5_000.0)
    predictor.observe(job, 10.0, 3.0)
    again = JobRequest("3", 4.0, gpus=1, user="ann", name="train")
    assert predictor.predict(again, 4.0, 5_000.0).seconds == pytest.approx(10.0)


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_jobs_are_predicted(kind: Callable[[], Predictor]) -> None:
    predictor = kind()
    names = ("", "\0", "é" * 10_000, "123456", "../../x", "a" * 10_000)
    for number, name in enumerate(names * 40):
        job = JobRequest(str(number), 1e9 * number, gpus=10**9 * (number % 2), user=name[:5], name=name)
        found = predictor.predict(job, 0.0)
        assert 0 < found.low <= found.seconds <= found.high <= LONGEST_SECONDS
        predictor.observe(job, (0.0, 1e300, nan, -1.0, inf, 5e-324)[number % 6], 0.0)
    predictor.observe(JobRequest("unknown", 0.0, gpus=1), 5.0, 0.0)  # submitted to an earlier server


def test_trainings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnt, "MAX_JOBS", 150)
    predictor, trained = LearntPredictor(retrain_every=200), list[int]()
    train = predictor._train
    monkeypatch.setattr(
        predictor,
        "_train",
        lambda: (trained.append(predictor._ended), train()),  # type: ignore[func-returns-value]
    )
    for number in range(900):
        predictor.observe(JobRequest(str(number), 0.0, gpus=1), 10.0, 0.0)
    assert trained == [100, 200, 400, 600, 800]
    assert len(predictor.rows) <= 300
    with pytest.raises(InvalidValue):
        LearntPredictor(0)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rapidfuzz.process", None)
    predictor = RollingPredictor()
    predictor.observe(JobRequest("1", 0.0, gpus=1, name="train"), 10.0, 0.0)
    with raises(UsageError, "missing_package", package="rapidfuzz"):
        predictor.predict(JobRequest("2", 0.0, gpus=1, name="trains"), 0.0)


def test_error_range_forgets_old_errors() -> None:
    errors = ErrorRange()
    for _ in range(WINDOW):
        errors.add(5.0)
    for value in range(WINDOW):
        errors.add(value / WINDOW)
    assert len(errors.order) == len(errors.sorted) == WINDOW
    found = errors.around(0.0, 1.0)
    assert log(found.low) == pytest.approx(0.0)
    assert log(found.high) == pytest.approx(0.9, abs=0.01)


def test_error_model_has_the_published_shares() -> None:
    random = Random(6)
    found = [error_model.predicted(1e6, random) / 1e6 for _ in range(20_000)]
    errors = [abs(value - 1.0) for value in found if value > 1.0]  # smaller ones are cut at 1 s
    shares = [
        fmean(low <= one < high for one in errors)
        for low, high in pairwise((0.0, 0.1, 0.5, 1.0, 10.0, 100.0))
    ]
    assert shares == pytest.approx([0.1, 0.4, 0.2, 0.2, 0.1], abs=0.015)
    assert fmean(value > 1.0 for value in found) == pytest.approx(0.5, abs=0.015)
    assert min(found) == 1e-6
    assert median(error_model.predicted(0.0, random) for _ in range(9)) == 1.0
    assert error_model.predicted(100.0, Random(1)) == error_model.predicted(100.0, Random(1))


@pytest.mark.parametrize("name", ["rolling", "learnt"])
def test_a_predictor_that_is_taught_equals_one_that_has_seen_the_jobs(name: str) -> None:
    living = predictor_of(name)
    replayed(living, JOBS)
    until = JOBS[-1].request.submitted
    ended = [
        (job.request, job.duration, job.request.submitted + job.duration)
        for job in JOBS
        if job.request.submitted + job.duration <= until
    ]
    Random(0).shuffle(ended)
    taught = taught_predictor(name, ended)
    new = [replace(job.request, id=f"new {job.request.id}") for job in JOBS[::20]]
    assert [taught.predict(job, until) for job in new] == [living.predict(job, until) for job in new]


def test_features_of_a_job_are_those_of_its_submission() -> None:
    predictor = LearntPredictor()
    first = JobRequest("a", 0, 1, user="ann", name="train")
    predictor.predict(first, 0)
    row = predictor.open["a"].row
    predictor.observe(JobRequest("b", 0, 1, user="ann", name="train"), 50.0, 60)
    predictor.predict(first, 70)
    assert predictor.open["a"].row is row
