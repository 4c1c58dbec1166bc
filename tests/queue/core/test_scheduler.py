"""Decisions of the scheduler, on machines and jobs of a few lines."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from oddlot.queue.core.commands import CancelJob, Command, PreemptJob, StartJob
from oddlot.queue.core.events import (
    ClockTicked,
    JobCancelled,
    JobEstimated,
    JobFailed,
    JobFinished,
    JobStarted,
    JobStopped,
    JobSubmitted,
    MachineJoined,
    MachineLost,
)
from oddlot.queue.core.jobs import JobRequest, Part, QueuedJob
from oddlot.queue.core.machines import Machine, MachinePool
from oddlot.queue.core.policy import Policy, Usage
from oddlot.queue.core.policy_registry import policy_of
from oddlot.queue.core.scheduler import Scheduler

DAY = 86_400.0


def job(name: str, at: float, gpus: int = 1, cpus: int = 0, cluster: str = "") -> JobRequest:
    return JobRequest(name, at, gpus, cpus, virtual_cluster=cluster)


def scheduler_with(policy: str, gpus: Sequence[int] = (4,), **settings: float) -> Scheduler:
    machines = [Machine(f"m{number}", count) for number, count in enumerate(gpus)]
    return Scheduler(policy_of(policy), machines, **settings)  # type: ignore[arg-type]


def started(commands: list[Command]) -> list[str]:
    return [command.job for command in commands if isinstance(command, StartJob)]


def submit(
    scheduler: Scheduler, name: str, at: float, gpus: int, seconds: float, cluster: str = ""
) -> list[Command]:
    return scheduler.handle(JobSubmitted(at, job(name, at, gpus, cluster=cluster), seconds))


def test_fifo_waits_for_the_first_job() -> None:
    scheduler = scheduler_with("fifo")
    assert started(submit(scheduler, "a", 0, 3, 100)) == ["a"]
    assert started(submit(scheduler, "wide", 1, 4, 100)) == []
    assert started(submit(scheduler, "b", 2, 1, 1)) == []
    assert started(scheduler.handle(JobFinished(100, "a", 1))) == ["wide"]
    assert started(scheduler.handle(JobFailed(200, "wide", 1))) == ["b"]


@pytest.mark.parametrize(("seconds", "starts"), [(90, True), (110, False)])
def test_backfilled_jobs_do_not_delay_the_first_one(seconds: float, starts: bool) -> None:
    scheduler = scheduler_with("fifo_backfill")
    submit(scheduler, "a", 0, 3, 100)
    submit(scheduler, "wide", 1, 4, 100)
    assert started(submit(scheduler, "b", 5, 1, seconds)) == ["b"] * starts


def test_backfilled_jobs_may_stay_where_the_first_one_does_not_run() -> None:
    scheduler = scheduler_with("fifo_backfill", (4, 2))
    submit(scheduler, "a", 0, 3, 100)
    submit(scheduler, "wide", 1, 4, 100)
    assert submit(scheduler, "long", 5, 2, DAY) == [StartJob("long", 1, (Part("m1", 2, 0),))]
    assert started(submit(scheduler, "longer", 6, 1, DAY)) == []


def test_room_that_backfilled_jobs_need_at_the_reserved_time_is_counted() -> None:
    scheduler = scheduler_with("fifo_backfill", (4, 4))
    submit(scheduler, "a", 0, 3, 100)
    submit(scheduler, "b", 0, 3, 200)
    submit(scheduler, "wide", 1, 4, 100)
    assert started(submit(scheduler, "first", 2, 1, DAY)) == ["first"]  # beside b
    assert scheduler.jobs["first"].placement == (Part("m1", 1, 0),)
    assert started(submit(scheduler, "second", 3, 1, DAY)) == []
    assert started(submit(scheduler, "third", 4, 1, 90)) == ["third"]


def test_a_job_that_runs_longer_than_predicted_is_expected_to_run_twice_as_long() -> None:
    scheduler = scheduler_with("fifo_backfill")
    submit(scheduler, "a", 0, 3, 10)
    submit(scheduler, "wide", 1, 4, 100)
    scheduler.handle(ClockTicked(50))  # expected at 80
    assert started(submit(scheduler, "b", 50, 1, 29)) == ["b"]
    scheduler.handle(JobFinished(51, "b", 1))
    assert started(submit(scheduler, "c", 51, 1, 31)) == []


def test_orders_of_policies() -> None:
    order = {}
    for policy in ("fifo", "sjf", "qssf"):
        scheduler = scheduler_with(policy)
        submit(scheduler, "running", 0, 4, 1)
        submit(scheduler, "long", 1, 1, 100)
        submit(scheduler, "wide", 2, 4, 40)
        submit(scheduler, "short", 3, 1, 90)
        order[policy] = [one.request.id for one in scheduler.line.jobs()]
    assert order == {
        "fifo": ["long", "wide", "short"],
        "sjf": ["wide", "short", "long"],
        "qssf": ["short", "long", "wide"],
    }


def test_shorter_jobs_preempt_and_nothing_else_starts_meanwhile() -> None:
    scheduler = scheduler_with("srtf", (4, 1))
    submit(scheduler, "long", 0, 4, 1_000)
    submit(scheduler, "other", 0, 1, 10)
    assert submit(scheduler, "short", 100, 2, 50) == [PreemptJob("long", 1)]
    assert submit(scheduler, "shorter", 100, 4, 5) == []
    assert scheduler.handle(JobStopped(105, "long", 1, 95)) == [StartJob("shorter", 1, (Part("m0", 4, 0),))]
    assert started(scheduler.handle(JobFinished(110, "shorter", 1))) == ["short"]
    assert scheduler.jobs["long"].remaining(110) == 905
    assert started(scheduler.handle(JobFinished(150, "short", 1))) == ["long"]
    assert scheduler.jobs["long"].attempt == 2


def test_equal_jobs_do_not_preempt_each_other() -> None:
    scheduler = scheduler_with("srtf")
    submit(scheduler, "a", 0, 4, 100)
    assert submit(scheduler, "b", 0, 4, 100) == []


def test_least_attained_service_preempts_a_job_that_has_run_long() -> None:
    scheduler = scheduler_with("las")
    submit(scheduler, "old", 0, 4, 0)
    assert submit(scheduler, "new", 800, 4, 0) == []
    assert scheduler.handle(ClockTicked(901)) == [PreemptJob("old", 1)]  # 3,604 GPU-seconds


def test_fair_share_starts_jobs_of_the_cluster_that_has_had_less() -> None:
    scheduler = Scheduler(policy_of("fair_share"), [Machine("m0", 4)], {"x": 3.0, "y": 1.0})
    submit(scheduler, "x1", 0, 4, 200, "x")
    scheduler.handle(JobFinished(200, "x1", 1))
    submit(scheduler, "y1", 200, 4, 100, "y")
    submit(scheduler, "y2", 250, 4, 100, "y")
    submit(scheduler, "x2", 260, 4, 100, "x")
    assert started(scheduler.handle(JobFinished(300, "y1", 1))) == ["x2"]  # 200 s / 3 are less than 100 s / 1


def test_jobs_that_have_waited_longest_come_first() -> None:
    scheduler = scheduler_with("qssf", longest_wait=DAY)
    submit(scheduler, "running", 0, 4, 1)
    submit(scheduler, "long", 0, 4, 1_000)
    submit(scheduler, "short", DAY, 1, 1)
    assert started(scheduler.handle(JobFinished(DAY + 1, "running", 1))) == ["long"]


def test_reports_of_other_attempts_are_ignored() -> None:
    scheduler = scheduler_with("fifo")
    submit(scheduler, "a", 0, 4, 100)
    scheduler.handle(JobStopped(10, "a", 1))
    assert scheduler.jobs["a"].attempt == 2
    for report in (JobFinished(20, "a", 1), JobStopped(20, "a", 1), JobFinished(20, "unknown", 1)):
        assert scheduler.handle(report) == []
    submit(scheduler, "a", 20, 4, 100)
    assert scheduler.jobs["a"].attempt == 2
    scheduler.handle(JobFinished(30, "a", 2))
    assert scheduler.jobs == {}
    assert scheduler.pool.place(4, 0) is not None


def test_jobs_are_cancelled() -> None:
    scheduler = scheduler_with("fifo")
    submit(scheduler, "a", 0, 4, 100)
    submit(scheduler, "b", 0, 4, 100)
    submit(scheduler, "c", 0, 4, 100)
    assert scheduler.handle(JobCancelled(1, "b")) == []
    assert scheduler.handle(JobCancelled(1, "a")) == [CancelJob("a", 1)]
    assert scheduler.handle(JobCancelled(1, "a")) == []
    assert started(scheduler.handle(JobStopped(2, "a", 1, 0))) == ["c"]


def test_jobs_of_a_lost_machine_start_elsewhere() -> None:
    scheduler = scheduler_with("fifo", (4, 4))
    submit(scheduler, "both", 0, 8, 100)
    assert started(scheduler.handle(MachineLost(5, "m0"))) == []
    assert started(submit(scheduler, "small", 6, 4, 1)) == ["small"]  # both can't run: it does not block
    commands = scheduler.handle(MachineJoined(7, Machine("m2", 4)))
    assert commands == []
    assert scheduler.handle(JobFinished(8, "small", 1)) == [
        StartJob("both", 2, (Part("m1", 4, 0), Part("m2", 4, 0)))
    ]


def test_a_new_scheduler_takes_over_running_jobs() -> None:
    scheduler = scheduler_with("fifo")
    scheduler.note(JobSubmitted(0, job("a", 0, 3), 100, attempt=2))
    scheduler.note(JobStarted(50, "a", 2, (Part("m0", 3, 0),)))
    scheduler.note(JobSubmitted(60, job("b", 60, 2), 100, attempt=1))
    assert scheduler.decide(60) == []
    assert scheduler.handle(JobFinished(70, "a", 2)) == [StartJob("b", 2, (Part("m0", 2, 0),))]


def test_new_predictions_change_the_order() -> None:
    scheduler = scheduler_with("qssf")
    submit(scheduler, "running", 0, 4, 1)
    submit(scheduler, "a", 0, 4, 10)
    submit(scheduler, "b", 0, 4, 20)
    scheduler.handle(JobEstimated(1, "a", 30))
    assert started(scheduler.handle(JobFinished(2, "running", 1))) == ["b"]


class HoldsBack(Policy):
    """Holds back jobs until a time."""

    changes = True

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> float | None:
        return None if now < 500 else 0.0


def test_a_policy_can_hold_jobs_back() -> None:
    scheduler = Scheduler(HoldsBack(), [Machine("m0", 4)])
    assert submit(scheduler, "a", 0, 1, 10) == []
    assert scheduler.handle(JobCancelled(1, "unknown")) == []
    assert started(scheduler.handle(ClockTicked(600))) == ["a"]


class Returns(Policy):
    """The priority of a job is in a dict. A preempting policy."""

    preempts = True

    def __init__(self, **priorities: object) -> None:
        self.priorities = priorities

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> float:
        return self.priorities[job.request.id]  # type: ignore[return-value]


@pytest.mark.parametrize("priority", [math.nan, "first", (1.0, "first"), [1.0]])
def test_jobs_for_which_the_policy_fails_are_held_back(priority: object) -> None:
    scheduler = Scheduler(Returns(bad=priority, good=(1, 2), number=np.float32(7)), [Machine("m0", 4)])
    assert [submit(scheduler, name, 0, 1, 10) for name in ("bad", "unknown")] == [[], []]
    assert started(submit(scheduler, "good", 0, 4, 10)) == ["good"]
    assert submit(scheduler, "number", 0, 4, 10) == []  # (7,) is behind (1, 2)
    assert [scheduler.failures[name].fields["job"] for name in ("bad", "unknown")] == ["bad", "unknown"]
    scheduler.handle(JobCancelled(1, "bad"))
    assert scheduler.failures.keys() == {"unknown"}


def test_running_jobs_for_which_the_policy_fails_are_not_preempted() -> None:
    policy = Returns(a=5.0, b=1.0)
    scheduler = Scheduler(policy, [Machine("m0", 4)])
    assert started(submit(scheduler, "a", 0, 4, 10)) == ["a"]
    policy.priorities["a"] = math.nan
    assert submit(scheduler, "b", 1, 4, 10) == []
    policy.priorities["a"] = 5.0
    assert scheduler.handle(ClockTicked(2)) == [PreemptJob("a", 1)]


@pytest.mark.parametrize(
    ("gpus", "cpus", "parts"),
    [
        (1, 0, [Part("small", 1, 0)]),
        (1, 4, [Part("half", 1, 4)]),
        (3, 0, [Part("half", 3, 0)]),
        (10, 0, [Part("large", 8, 0), Part("small", 2, 0)]),
        (0, 2, [Part("small", 0, 2)]),
        (0, 20, [Part("large", 0, 20)]),
        (8, 40, None),
        (17, 0, None),
    ],
)
def test_jobs_are_placed_by_consolidated_best_fit(gpus: int, cpus: int, parts: list[Part] | None) -> None:
    pool = MachinePool([Machine("large", 8, 32), Machine("half", 8, 16), Machine("small", 2, 3)])
    pool.take((Part("half", 4, 1),))
    placement = pool.place(gpus, cpus)
    assert placement == (None if parts is None else tuple(parts))


def test_cores_of_a_job_on_several_machines_are_shared() -> None:
    pool = MachinePool([Machine("m0", 4, 16), Machine("m1", 4, 16)])
    assert pool.place(8, 24) == (Part("m0", 4, 12), Part("m1", 4, 12))
    pool.take((Part("m0", 0, 8),))
    assert pool.place(8, 24) is None
    pool.join(Machine("m0", 4, 32))
    assert pool.place(8, 24) is not None
