"""check_policy: it passes for shipped policies, and each promise can be broken."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from oddlot.queue.core import scheduler
from oddlot.queue.core.jobs import QueuedJob
from oddlot.queue.core.machines import MachinePool
from oddlot.queue.core.policies.fifo import Fifo
from oddlot.queue.core.policies.shortest_job import ShortestRemainingTime
from oddlot.queue.core.policy import Policy, PolicyFailed, Usage
from oddlot.queue.core.policy_registry import POLICIES, policy_of
from oddlot.queue.policy_check import BrokenPolicy, check_policy


@pytest.mark.parametrize("name", POLICIES)
def test_shipped_policies_keep_the_promises(name: str) -> None:
    check_policy(lambda: policy_of(name), histories=20)


class Drawn(Policy):
    """An order that no two runs share."""

    random = Random(0)

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> float:
        return self.random.random()


class Without(Policy):
    """Jobs of one user are never started."""

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> float | None:
        return None if job.request.user == "b" else job.request.submitted


class LargeJobsLater(Policy):
    """Large jobs wait until no other job waits or runs."""

    changes = True

    def priority(self, job: QueuedJob, now: float, usage: Usage) -> float | None:
        return None if job.request.gpus > 1 and now < 1e6 else 0.0


@pytest.mark.parametrize(("policy", "promise"), [(Drawn, 4), (Without, 2), (LargeJobsLater, 3)])
def test_bad_policies_break_a_promise(policy: Callable[[], Policy], promise: int) -> None:
    with pytest.raises(BrokenPolicy) as caught:
        check_policy(policy, histories=20)
    assert caught.value.promise == promise


def test_a_scheduler_that_starts_a_job_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_again(self: Any, event: Any) -> None:
        job = self.jobs.get(event.job)
        if job is not None and job.placement:  # without a look at the attempt
            self._release(job, event.at)
            self._wait(job, event.at)

    monkeypatch.setattr(scheduler.Scheduler, "_stopped", run_again)
    with pytest.raises(BrokenPolicy) as caught:
        check_policy(ShortestRemainingTime, histories=20)
    assert caught.value.promise == 0


def test_a_scheduler_that_uses_a_machine_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    take = MachinePool.take
    monkeypatch.setattr(MachinePool, "take", lambda self, placement: take(self, placement[1:]))
    with pytest.raises(BrokenPolicy) as caught:
        check_policy(Fifo, histories=20)
    assert caught.value.promise == 1


def test_a_scheduler_that_gives_a_job_no_cores_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    by_cpus = MachinePool._by_cpus
    monkeypatch.setattr(MachinePool, "_by_cpus", lambda self, cpus, without: by_cpus(self, 0, without))
    with pytest.raises(BrokenPolicy) as caught:
        check_policy(Fifo, histories=20)
    assert caught.value.promise == 1


def test_errors_of_a_policy_are_raised() -> None:
    with pytest.raises(PolicyFailed) as caught:
        check_policy(Policy)
    assert isinstance(caught.value.__cause__, NotImplementedError)
