"""Figures of a log of jobs."""

import json
from pathlib import Path

import numpy as np
import pytest

from oddlot.queue.analyze.trace_analysis import analyze, distribution
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.traces.generated import RecurrentJobs
from oddlot.queue.traces.trace import Trace, TraceJob, TraceProblem
from tests.command import Oddlot

MONDAY = 4 * 86_400.0
"""1970-01-05."""


def job(
    at: float, seconds: float, gpus: int = 1, user: str = "", state: str = "", queued: float | None = None
) -> TraceJob:
    request = JobRequest(f"{at}", at, gpus=gpus, cpus=0 if gpus else 4, user=user, virtual_cluster="vc")
    return TraceJob(request, seconds, state, queued)


JOBS = (
    job(MONDAY + 3_600, 3_600.0, 1, "ann", "completed", 0.0),
    job(MONDAY + 3_700, 7_200.0, 3, "ann", "failed", 60.0),
    job(MONDAY + 86_400, 36_000.0, 8, "bob", "completed", 120.0),
    job(MONDAY + 90_000, 100.0, 0, "eve", "completed", 0.0),
)
TRACE = Trace(JOBS, (TraceProblem(7, "no duration"),), {"vc": 2})


def test_figures_of_a_small_trace() -> None:
    found = analyze(TRACE)
    assert (found.jobs, found.without_gpu, found.left_out, found.users, found.unit) == (3, 1, 1, 2, "GPU")
    assert found.unit_hours == pytest.approx(1 + 6 + 80)
    assert (found.durations.mean, found.durations.median) == (15_600.0, 7_200.0)
    assert found.queued is not None
    assert found.queued.mean == 60.0
    assert [(one.name, one.jobs, one.mean_queued) for one in found.by_user] == [
        ("bob", 1, 120.0),
        ("ann", 2, 30.0),
    ]
    assert found.by_user[0].share == pytest.approx(80 / 87)
    assert {one.name: one.jobs for one in found.by_state} == {"completed": 2, "failed": 1}
    assert [(one.name, one.jobs) for one in found.by_size] == [("1", 1), ("4", 1), ("8", 1)]
    assert (found.first, found.last) == ("1970-01-05", "1970-01-06")
    assert found.by_weekday == (2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert found.by_hour[1] == 2.0
    assert found.by_hour[0] == 1.0
    assert sum(found.by_hour) == 3.0
    assert found.capacity == 16
    assert found.user_curve[-1] == pytest.approx((1.0, 1.0))


def test_units_in_use_add_up_to_the_work() -> None:
    found = analyze(TRACE)
    times = np.array([0.0, *(at for at, _ in found.in_use)])
    work = float(np.sum(np.diff(times) * np.array([mean for _, mean in found.in_use])))
    assert work == pytest.approx(3_600 * found.unit_hours)
    assert max(mean for _, mean in found.in_use) == pytest.approx(8.0)


def test_jobs_without_gpu_are_analyzed_by_cores_if_no_other_exist() -> None:
    found = analyze(Trace(JOBS[3:]))
    assert (found.unit, found.jobs, found.without_gpu) == ("core", 1, 0)
    assert found.unit_hours == pytest.approx(400 / 3_600)


def test_users_are_concentrated_as_generated() -> None:
    found = analyze(RecurrentJobs(jobs=3_000).trace())
    assert found.queued is None
    assert found.top_user_shares["1%"] <= found.top_user_shares["5%"] <= found.top_user_shares["20%"] <= 1.0
    assert found.top_user_shares["20%"] > 0.4
    hours = found.by_hour
    assert max(hours) > 3 * min(hours)


def test_distribution_is_weighted_and_bounded() -> None:
    values = np.arange(1_000.0)
    curve = distribution(values, np.where(values < 500, 0.0, 1.0), 50)
    assert 50 <= len(curve) <= 100
    assert max(np.diff([share for _, share in curve])) < 0.025
    assert curve[-1] == (999.0, 1.0)
    assert [share for value, share in curve if value < 499] == [0.0] * len(
        [1 for value, _ in curve if value < 499]
    )
    assert distribution(np.array([]), np.array([])) == ()


@pytest.mark.parametrize(
    "jobs",
    [
        (job(-1e12, 0.0), job(1e12, 1e12, 1_000_000, queued=1e12)),
        (job(0.0, 0.0),),
        (job(5.0, 0.0, user="\0<b>"), job(5.0, 1e-300)),
    ],
)
def test_extreme_jobs_have_finite_figures(jobs: tuple[TraceJob, ...]) -> None:
    json.dumps(analyze(Trace(jobs)).as_json(), allow_nan=False)


def test_command_prints_and_writes(tmp_path: Path, oddlot: Oddlot) -> None:
    lines = ["id,submitted,duration,gpus,user,state,name"]
    lines += [f"{n},{n * 900},{60 + n},{1 + n % 3},<u{n % 4}>,failed,j" for n in range(200)] + [
        "x,1,-1,1,u,,"
    ]
    trace = tmp_path / "jobs.csv"
    trace.write_text("\n".join(lines))
    page, plot = tmp_path / "a.html", tmp_path / "a.svg"
    done = oddlot("queue", "analyze", str(trace), "--html", str(page), "--svg", str(plot))
    assert done.code == 0
    assert "200 jobs" in done.out
    assert "<u1>" not in page.read_text()
    assert "&lt;u1&gt;" in page.read_text()
    assert plot.read_text().startswith("<svg")
    found = json.loads(oddlot("queue", "analyze", str(trace), "--json").out)
    assert (found["jobs"], found["left_out"], found["users"]) == (200, 1, 4)
    assert [one["line"] for one in found["problems"]] == [202]
    assert oddlot("queue", "analyze", str(tmp_path / "none.csv")).code == 2
