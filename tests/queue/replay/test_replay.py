"""Replays: times of jobs, preemptions, sizes of clusters, figures."""

from collections.abc import Sequence

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.jobs import JobRequest, QueuedJob
from oddlot.queue.core.machines import Machine
from oddlot.queue.core.policies.fifo import Fifo
from oddlot.queue.core.policy import Policy, PolicyFailed, Usage
from oddlot.queue.core.policy_registry import policy_of
from oddlot.queue.replay.replay import Replay, machines_for_load, machines_of, replay
from oddlot.queue.replay.replay_figures import distribution, figures_of, load_curve
from oddlot.queue.replay.simulation import Simulation
from oddlot.queue.traces.trace import TraceJob


def jobs_of(*rows: tuple[float, int, float] | tuple[float, int, float, str]) -> list[TraceJob]:
    """Return jobs from rows of submission, GPUs, duration and virtual cluster."""
    return [
        TraceJob(
            JobRequest(str(number), row[0], row[1], virtual_cluster=row[3] if len(row) > 3 else ""), row[2]
        )
        for number, row in enumerate(rows)
    ]


def ends(done: Replay) -> list[float]:
    return [job.ended for job in done.jobs]


def replayed(jobs: Sequence[TraceJob], policy: str, gpus: int = 4) -> Replay:
    return replay(jobs, policy_of(policy), {"": [Machine("m", gpus)]})


JOBS = jobs_of((0, 4, 100), (1, 4, 1_000), (2, 1, 500), (3, 4, 10))


@pytest.mark.parametrize(
    ("policy", "times"),
    [
        ("fifo", [100, 1_100, 1_600, 1_610]),
        ("sjf", [100, 1_610, 610, 110]),
        ("qssf", [100, 1_610, 610, 110]),
    ],
)
def test_jobs_end_when_the_policy_lets_them(policy: str, times: list[float]) -> None:
    assert ends(replayed(JOBS, policy)) == times


def test_a_preempted_job_needs_more_time() -> None:
    done = replayed(jobs_of((0, 4, 100), (3, 4, 10)), "srtf")
    assert ends(done) == [100 + 10 + 30, 13]
    assert figures_of(done).preemptions == 1


def test_clusters_have_machines_of_their_own_unless_they_share() -> None:
    jobs = jobs_of((0, 4, 100, "x"), (0, 4, 100, "y"), (0, 4, 100, "y"))
    machines = {name: [Machine(name, 4)] for name in ("x", "y")}
    assert ends(replay(jobs, policy_of("fifo"), machines)) == [100, 100, 200]
    shared = {"": [Machine("m", 8)]}
    done = replay(jobs, policy_of("fifo"), shared)
    assert ends(done) == [100, 100, 200]
    assert [one.virtual_cluster for one in figures_of(done).by_cluster] == ["x", "y"]


def test_jobs_that_end_and_come_at_the_same_time_are_decided_together() -> None:
    jobs = jobs_of((0, 4, 100), (50, 4, 30), (100, 4, 10))
    assert ends(replayed(jobs, "sjf")) == [100, 140, 110]


def test_least_attained_service_changes_with_time_alone() -> None:
    done = replayed(jobs_of((0, 4, 2_000), (10, 4, 100)), "las")
    assert done.jobs[0].attempts == 2
    assert done.jobs[1].started == 900  # a tick, when the first job has 3,600 GPU-seconds
    assert done.jobs[0].ended == 2_000 + 100 + 30


def test_predictors_know_only_jobs_that_have_ended() -> None:
    known: list[str] = []

    def predict(job: TraceJob, now: float) -> float:
        assert [int(name) for name in known] == [
            number for number in range(3) if jobs[number].request.submitted + 100 <= now
        ]
        return 1.0

    jobs = jobs_of((0, 1, 100), (50, 1, 100), (100, 1, 100))
    observed = Simulation(
        jobs,
        policy_of("qssf"),
        {"": [Machine("m", 4)]},
        predict,
        lambda request, duration, now: known.append(request.id),
    )
    observed.run()
    assert known == ["0", "1", "2"]


def test_clusters_are_sized_by_load_and_largest_job() -> None:
    jobs = jobs_of((0, 8, 500, "x"), (1_000, 8, 700, "x"), (0, 40, 1, "y"))
    machines = machines_for_load(jobs, 0.5, 1_000)
    assert {name: len(pool) for name, pool in machines.items()} == {"x": 3, "y": 5}
    assert len(machines_for_load(jobs[:2], 0.5)["x"]) == 3


def test_figures() -> None:
    done = replay(
        jobs_of((0, 4, 100), (0, 4, 100), (150, 1, 1)), policy_of("fifo"), {"": machines_of("m", 1, 4)}
    )
    found = figures_of(done)
    assert (found.jobs, found.gpus, found.preemptions) == (3, 4, 0)
    assert found.mean_completion == pytest.approx((100 + 200 + 51) / 3)
    assert found.mean_queued == pytest.approx((0 + 100 + 50) / 3)
    assert found.mean_slowdown == pytest.approx((1 + 2 + 5.1) / 3)
    assert found.utilization == pytest.approx(1.0)
    curve = load_curve(done)
    assert curve[0][1] == pytest.approx(4.0)
    assert sum(used for _, used in curve) / len(curve) * 201 == pytest.approx(801)
    assert distribution([1, 2, 3, 4], 2) == [(2.5, 0.5), (4.0, 1.0)]


@pytest.mark.parametrize(
    ("jobs", "code"),
    [
        (jobs_of((0, 5, 1)), "job_too_large"),
        ([*jobs_of((0, 1, 1)), *jobs_of((0, 1, 1))], "duplicate_jobs"),
    ],
)
def test_jobs_that_cannot_be_replayed_are_rejected(jobs: list[TraceJob], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        replayed(jobs, "fifo")
    assert caught.value.code == code


def test_clusters_without_machines_and_unknown_predictions_are_rejected() -> None:
    jobs = jobs_of((0, 1, 1, "x"))
    for machines, predictions, code in (
        ({"y": [Machine("m", 4)]}, "exact", "no_machines"),
        ({"": [Machine("m", 4)]}, "guess", "unknown_name"),
    ):
        with pytest.raises(UsageError) as caught:
            replay(jobs, policy_of("fifo"), machines, predictions)
        assert caught.value.code == code


def test_a_policy_that_holds_jobs_back_for_ever_is_rejected() -> None:
    class HoldsBack(Fifo):
        name = "holds_back"

        def priority(self, job: QueuedJob, now: float, usage: Usage) -> float | None:  # type: ignore[override]
            return None if job.request.gpus > 1 else 0.0

    with pytest.raises(UsageError) as caught:
        replay(JOBS, HoldsBack(), {"": [Machine("m", 4)]})
    assert caught.value.code == "jobs_held_back"
    assert caught.value.fields["jobs"] == 3


def test_a_policy_that_fails_ends_a_replay() -> None:
    with pytest.raises(PolicyFailed):
        replay(JOBS, Policy(), {"": [Machine("m", 4)]})


def test_the_load_of_preempted_jobs_is_when_they_ran() -> None:
    done = replayed(jobs_of((0, 4, 100), (50, 4, 10)), "srtf")
    assert done.jobs[0].intervals == [(0, 50), (60, 140)]
    (_, first), *_ = load_curve(done)
    assert first == pytest.approx(4.0)
