"""Ranges of expected times of jobs that are overdue or stopping."""

from dataclasses import dataclass

from oddlot.queue.core.events import JobCancelled, JobSubmitted
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.core.machines import Machine
from oddlot.queue.core.policy_registry import policy_of
from oddlot.queue.core.scheduler import Scheduler
from oddlot.queue.server.expected_ranges import ExpectedRange, expected_ranges


@dataclass(frozen=True)
class PredictedJob:
    id: int
    predicted: float
    low: float
    high: float


def a_scheduler(policy: str, *jobs: PredictedJob) -> Scheduler:
    """Return a scheduler of one core after the submission of jobs."""
    scheduler = Scheduler(policy_of(policy), [Machine("a", 0, 1)])
    for job in jobs:
        scheduler.note(JobSubmitted(0.0, JobRequest(str(job.id), 0.0, cpus=1), job.predicted))
    scheduler.decide(0.0)
    return scheduler


def test_overdue_job_keeps_its_relative_range() -> None:
    job = PredictedJob(1, 10.0, 5.0, 30.0)
    found = expected_ranges(a_scheduler("fifo", job), [job], 25.0)
    assert found[1].end == (26.0, 40.0, 120.0)
    found = expected_ranges(a_scheduler("fifo", job), [job], 7.0)
    assert found[1].end == (8.0, 10.0, 30.0)


def test_cancelled_job_frees_its_core_now_and_ends_within_the_grace_period() -> None:
    jobs = [PredictedJob(1, 1000.0, 500.0, 2000.0), PredictedJob(2, 10.0, 5.0, 20.0)]
    scheduler = a_scheduler("fifo", *jobs)
    scheduler.note(JobCancelled(4.0, "1"))
    assert expected_ranges(scheduler, jobs, 5.0, grace=30.0) == {
        1: ExpectedRange((0.0, 0.0, 0.0), (5.0, 5.0, 35.0)),
        2: ExpectedRange((5.0, 5.0, 5.0), (10.0, 15.0, 25.0)),
    }


def test_preempted_job_that_still_stops_does_not_delay_the_job_that_preempted_it() -> None:
    jobs = [PredictedJob(1, 1000.0, 1000.0, 1000.0), PredictedJob(2, 10.0, 10.0, 10.0)]
    scheduler = a_scheduler("srtf", jobs[0])
    scheduler.handle(JobSubmitted(5.0, JobRequest("2", 5.0, cpus=1), 10.0))
    found = expected_ranges(scheduler, jobs, 6.0)
    assert (found[2].start[1], found[1].end[1]) == (6.0, 1010.0)
