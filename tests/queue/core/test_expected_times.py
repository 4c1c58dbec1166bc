"""Expected starts and ends of jobs."""

import random

import pytest

from oddlot.queue.core.events import JobSubmitted
from oddlot.queue.core.expected_times import ExpectedTimes, expected_times
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.core.machines import Machine
from oddlot.queue.core.policy_registry import policy_of
from oddlot.queue.core.scheduler import Scheduler


def a_scheduler(policy: str, predictions: list[float], cpus: int = 1) -> Scheduler:
    """Return a scheduler of one machine after jobs of one core."""
    scheduler = Scheduler(policy_of(policy), [Machine("a", 0, cpus)])
    for index, seconds in enumerate(predictions):
        scheduler.note(JobSubmitted(0.0, JobRequest(str(index), 0.0, cpus=1), seconds))
    scheduler.decide(0.0)
    return scheduler


def test_jobs_follow_each_other_in_the_order_of_the_policy() -> None:
    fifo = expected_times(a_scheduler("fifo", [10, 30, 20]), {}, 0.0)
    assert fifo == {"0": ExpectedTimes(0, 10), "1": ExpectedTimes(10, 40), "2": ExpectedTimes(40, 60)}
    shortest = expected_times(a_scheduler("qssf", [10, 30, 20]), {}, 0.0)
    assert [shortest[job].start for job in "012"] == [0, 30, 10]


def test_given_durations_change_the_times_and_not_the_order() -> None:
    scheduler = a_scheduler("qssf", [10, 30, 20])
    found = expected_times(scheduler, {"0": 100, "1": 1, "2": 1000}, 0.0)
    assert [found[job].end for job in "021"] == [100, 1100, 1101]
    assert [len(scheduler.jobs), len(list(scheduler.line.jobs()))] == [3, 2]


def test_job_that_runs_longer_than_predicted_takes_twice_as_long() -> None:
    found = expected_times(a_scheduler("fifo", [10, 5]), {}, 25.0)
    assert found == {"0": ExpectedTimes(0, 40), "1": ExpectedTimes(40, 45)}


def test_preempted_job_ends_after_the_job_that_preempted_it() -> None:
    scheduler = a_scheduler("srtf", [100])
    scheduler.note(JobSubmitted(10.0, JobRequest("short", 10.0, cpus=1), 5.0))
    assert expected_times(scheduler, {}, 10.0) == {"short": ExpectedTimes(10, 15), "0": ExpectedTimes(0, 105)}


@pytest.mark.parametrize("policy", ["qssf_backfill", "fair_share", "las", "srtf"])
def test_each_job_of_a_mixed_queue_gets_times(policy: str) -> None:
    stream = random.Random(0)
    scheduler = Scheduler(policy_of(policy), [Machine("a", 8, 64), Machine("b", 8, 64)], longest_wait=1000)
    for index in range(300):
        gpus, cpus = stream.choice([0, 1, 1, 2, 4, 8]), stream.choice([1, 4, 8, 16])
        job = JobRequest(str(index), 0.0, gpus, cpus)
        scheduler.note(JobSubmitted(0.0, job, stream.lognormvariate(6, 1.5)))
    scheduler.decide(0.0)
    found = expected_times(scheduler, {}, 1.0, most=1000)
    assert found.keys() == {str(index) for index in range(300)}
    assert all(times.start < times.end for times in found.values())
    running = {name for name, job in scheduler.jobs.items() if job.placement}
    assert len(expected_times(scheduler, {}, 1.0, most=20)) <= len(running) + 20
