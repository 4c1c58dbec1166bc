"""Replacement of workers and failure of the run, tested without processes."""

import signal
from dataclasses import replace
from math import inf

import pytest

from oddlot.core.support.errors import JobError
from oddlot.engines.processes.respawn import DEATHS_BEFORE_GIVING_UP, Death, RespawnPolicy
from tests.transcripts import raises, warns

START = Death("w1", 0, exit_code=1)
"""A worker that ended before it was ready."""
WORK = Death("w1", 0, exit_code=-signal.SIGKILL, had_tasks=True, productive=True)


@pytest.mark.parametrize(
    ("death", "cause"),
    [
        (Death("w1", 0, exit_code=3, had_tasks=True), "exit code 3"),
        (Death("w1", 0, exit_code=0, had_tasks=True), "exit code 0"),
        (Death("w1", 0, exit_code=-signal.SIGSEGV, had_tasks=True), "SIGSEGV"),
        (Death("w1", 0, exit_code=-signal.SIGKILL, had_tasks=True), None),  # memory ran out
        (Death("w1", 0, exit_code=3), None),
        (Death("w1", 0, exit_code=None, had_tasks=True), None),
        (Death("w1", 0, exit_code=3, had_tasks=True, expected=True), None),
        (Death("w1", 0, had_tasks=True, expected=True, silent_seconds=3.0), None),
        (Death("w1", 0, exit_code=3, had_tasks=True, outside=True), None),
    ],
)
def test_only_deaths_during_a_task_implicate_samples(death: Death, cause: str | None) -> None:
    assert death.cause == cause


def test_silence_during_a_task_implicates_samples() -> None:
    cause = Death("w1", 0, had_tasks=True, silent_seconds=3.0).cause
    assert "lost_after_seconds" in str(cause)


@pytest.mark.parametrize(
    ("death", "counts"),
    [
        (START, True),
        (replace(START, exit_code=None, invalid=True), True),
        (replace(WORK, productive=False), True),
        (replace(START, idle=True), False),
        (replace(START, expected=True), False),
        (replace(START, killed=True), False),
        (replace(START, outside=True), False),
        (replace(WORK, productive=False, outside=True), False),  # its node was lost during a long task
        (replace(START, had_tasks=True), False),  # its samples are suspected instead
        (replace(START, exit_code=None, silent_seconds=3.0), True),
        (replace(WORK, exit_code=None, silent_seconds=3.0), False),
    ],
)
def test_failed_starts_in_a_row_end_the_run(death: Death, counts: bool) -> None:
    policy = RespawnPolicy(2, replaces=True)
    for _ in range(DEATHS_BEFORE_GIVING_UP - 1):
        policy.died(death, 0.0)
    if not counts:
        policy.died(death, 0.0)
        return
    with raises(JobError, "workers_keep_dying", node="w1", exit_code=death.exit_code):
        policy.died(death, 0.0)


def test_faults_without_time_to_work_warn_once() -> None:
    """Faults that leave workers no time to work do not count as failed starts, and warn once."""
    policy = RespawnPolicy(1, replaces=True)
    with warns("faults_leave_no_time", workers=10) as caught:
        for now in range(30):
            policy.died(replace(START, killed=True), float(now))
    assert len(caught.all) == 1


@pytest.mark.parametrize(
    ("index", "forgiven_by"), [(0, "update_came"), (-1, "metrics_came")], ids=["worker", "evaluator"]
)
def test_updates_and_metrics_reset_failed_starts(index: int, forgiven_by: str) -> None:
    """Updates reset the failed starts of workers. Metrics reset the failed starts of the evaluator."""
    policy, death = RespawnPolicy(1, replaces=True), replace(START, index=index)
    for _ in range(DEATHS_BEFORE_GIVING_UP + 1):
        policy.died(death, 0.0)
        getattr(policy, forgiven_by)()
    other = {"update_came": "metrics_came", "metrics_came": "update_came"}[forgiven_by]
    with raises(JobError, "workers_keep_dying"):
        for _ in range(DEATHS_BEFORE_GIVING_UP):
            policy.died(death, 0.0)
            getattr(policy, other)()


@pytest.mark.parametrize(
    ("death", "times"),
    [
        (WORK, [0.0, 1.0, 2.0, 3.0, 4.0]),
        (replace(START, idle=True, expected=True), [0.0, 1.0, 2.0, 3.0, 4.0]),
        (replace(START, killed=True), [0.0, 1.0, 2.0, 3.0, 4.0]),
        (replace(START, idle=True), [0.0, 1.0, 2.0, 60.0, 61.0]),
        (replace(START, outside=True), [0.0, 1.0, 2.0, 60.0, 61.0]),
    ],
    ids=["productive", "expected", "killed", "neither", "outside"],
)
def test_unproductive_workers_are_replaced_three_times_a_minute(death: Death, times: list[float]) -> None:
    policy, found = RespawnPolicy(1, replaces=True), list[float]()
    for now in range(5):
        policy.died(death, float(now))
        found.append(policy.next_at)
        assert policy.due(policy.next_at) == [0]
        policy.update_came()
    assert found == times


@pytest.mark.parametrize(("replaces", "index"), [(False, 0), (True, -1)], ids=["no respawn", "evaluator"])
def test_evaluator_and_workers_without_respawn_are_not_replaced(replaces: bool, index: int) -> None:
    policy = RespawnPolicy(1, replaces)
    policy.died(replace(WORK, index=index), 0.0)
    assert policy.next_at == inf


def test_blocked_worker_is_replaced_once_unblocked() -> None:
    policy = RespawnPolicy(2, replaces=True)
    policy.bar(0, True, 0.0)
    policy.died(WORK, 1.0)
    policy.died(replace(WORK, node="w2", index=1), 1.0)
    assert policy.due(1.0) == [1]
    assert policy.due(9.0) == []
    policy.bar(0, False, 9.0)
    assert policy.due(9.0) == [0]


def test_unblocking_starts_no_worker_that_is_not_due() -> None:
    policy = RespawnPolicy(1, replaces=True)
    policy.bar(0, True, 0.0)
    policy.bar(0, False, 1.0)
    assert policy.due(inf) == []


def test_due_workers_are_ordered_by_time() -> None:
    policy = RespawnPolicy(3, replaces=True)
    for index, at in ((0, 3.0), (1, 1.0), (-1, 2.0), (2, 5.0)):
        policy.retry(index, at)
    assert policy.next_at == 1.0
    assert policy.due(4.0) == [1, -1, 0]
    assert policy.next_at == 5.0


def test_unwanted_worker_waits_until_it_is_wanted() -> None:
    policy = RespawnPolicy(2, replaces=True)
    policy.reserve(1)
    policy.want(1, True, 1.0)
    assert policy.due(1.0) == [1]
    policy.want(1, False, 2.0)
    policy.died(replace(WORK, index=1), 3.0)
    assert policy.due(3.0) == []
    policy.bar(1, True, 4.0)
    policy.want(1, True, 4.0)
    assert policy.due(4.0) == []
    policy.bar(1, False, 5.0)
    assert policy.due(5.0) == [1]
