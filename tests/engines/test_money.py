"""Tests of the costs of simulated machines with stops, resumes and failed starts, computed from the log."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oddlot import Asynchronous, CheckpointError, JobError, Machine, Simulated, fit
from oddlot.core.events import Joined, Ordered, Priced, Resumed
from oddlot.core.tasks import machine_of
from oddlot.faults import Chaos
from oddlot.machines import Hub, Memoryless, Steps
from oddlot.report.run_report import RunReport
from tests.engines.log import events, times
from tests.engines.market import LIKE, alive, run, when, zone
from tests.fits import a_job, rows
from tests.run.test_resume import KillAt, Killed
from tests.transcripts import raises

FLAPS = alive((0.0, 2.0), (1.0, 0.0), period=2.0)


def test_budget_raised_on_resume_is_cumulative(tmp_path: Path) -> None:
    """Two machines cost 0.1 dollars per second each. Their tasks need 400 s, so no update arrives."""
    slow = zone(like=replace(LIKE, seconds_per_sample=50.0))
    for dollars, resume in ((5, None), (6, "latest"), (7, "latest")):
        found = run(slow, until=f"dollars<={dollars}", out=tmp_path, resume=resume)
        assert found.dollars == pytest.approx(dollars)
        assert found.summary["seconds"] == pytest.approx(dollars / 0.2)


def test_hub_cost_alone_reaches_a_budget() -> None:
    found = run(Machine("m", 0.1), hub=Hub(dollars_per_hour=3600.0), until="dollars<=0.5")
    assert found.summary["seconds"] == pytest.approx(0.5)


def test_hub_time_without_machines_is_kept_on_resume(tmp_path: Path) -> None:
    """Two machines are preempted at 2 s, and the run is stopped at 5,000 s."""
    gone, hub = zone(alive((0.0, 2.0), (2.0, 0.0))), Hub(dollars_per_hour=36.0)
    found = run(gone, hub=hub, until="seconds>=5000", out=tmp_path)
    assert found.dollars == pytest.approx(50 + 2 * 0.2)
    again = run(gone, hub=hub, until="seconds>=5001", out=tmp_path, resume="latest")
    assert again.dollars == pytest.approx(50.01 + 2 * 0.2)
    assert again.summary["seconds_without_workers"] == pytest.approx(4_999)


def test_starting_machine_is_replaced_after_resume(tmp_path: Path) -> None:
    run(zone(seconds_to_start=3.0), until="seconds>=1", out=tmp_path)
    found = run(zone(seconds_to_start=3.0), out=tmp_path, resume="latest")
    ordered = [event.node for event in events(found.records, Ordered)]
    assert len(set(ordered)) == len(ordered) == 4


def test_resumed_zone_has_its_current_capacity_and_price(tmp_path: Path) -> None:
    """Machines of the resumed zone join immediately, at the current price."""
    dear = zone(prices=Steps((0.0, 0.5, 1.5), (360.0, 720.0, 1440.0)))
    run(dear, until="seconds>=1", out=tmp_path)
    found = run(dear, until="epochs>=4", out=tmp_path, resume="latest")
    assert events(found.records, Joined)[2:] == [Joined(f"east{n}.2", 720.0, "east") for n in (1, 2)]
    assert times(found.records, Joined)[2:] == [1.0, 1.0]
    assert times(found.records, Priced) == [0.5, 1.5]


def test_resume_skips_capacity_changes_during_the_pause(tmp_path: Path) -> None:
    """A resumed run has no events for capacity changes while its hub was stopped."""
    restless = zone(Memoryless(1.0, 0.5), count=3)
    run(restless, until="seconds>=60", out=tmp_path)
    found = run(restless, until="seconds>=61", out=tmp_path, resume="latest")
    (resumed,) = times(found.records, Resumed)
    again = [now for now, _ in when(found, Joined) if now >= round(resumed, 6)]
    assert sum(now == pytest.approx(resumed) for now in again) <= 3
    assert len(again) < 15


def test_machines_that_never_become_ready_end_the_run(tmp_path: Path) -> None:
    with raises(JobError, "lost_while_starting", starts=1022, seconds_to_start=3.0):
        run(zone(FLAPS, seconds_to_start=3.0), out=tmp_path)
    assert RunReport.read(tmp_path).summary["starts_lost"] == 1022, "the last one is among them"
    with raises(JobError, "lost_while_starting", starts=1011):
        run(Machine("m", 0.05, seconds_to_start=3.0), chaos=Chaos(capacity=FLAPS))


def test_failed_starts_do_not_end_a_run_with_a_working_machine() -> None:
    """More than 1,400 machines are lost while starting. Another machine trains for 48 x 30 s."""
    assert run(zone(FLAPS, seconds_to_start=3.0), Machine("steady", 30.0)).summary["starts_lost"] > 1_400


def test_successful_start_resets_the_failed_start_count() -> None:
    """700 machines in a row are lost while starting, two become ready and are preempted, and 700 more are lost."""
    falls = [
        (at + 2 * n + half, 2.0 - 2 * half) for at in (0.0, 2000.0) for n in range(350) for half in (0, 1)
    ]
    falls += [(900.0, 2.0), (920.0, 0.0), (2900.0, 2.0)]
    slow = replace(LIKE, seconds_per_sample=5.0)
    found = run(zone(alive(*sorted(falls)), like=slow, seconds_to_start=3.0))
    assert found.summary["starts_lost"] == 1_400


def test_error_names_the_machine_lost_while_starting() -> None:
    """The error names the lost machine, and not the next machine: it might complete the run."""
    flaps, late = zone(FLAPS, seconds_to_start=3.0), Machine("late", 0.05, joins_at_seconds=1031.5)
    assert run(flaps, late).summary["starts_lost"] > 1_030
    with raises(JobError, "lost_while_starting", seconds_to_start=3.0) as caught:
        run(zone(FLAPS, name="west", seconds_to_start=5.0), flaps)
    assert machine_of(caught.fields["node"]) == "east2"


def test_zones_that_conflict_with_the_chaos_capacity_end_the_run() -> None:
    """The zone has capacity in the first half of each 2 s, and the fault injection has capacity in the second half."""
    never = Chaos(capacity=alive((0.0, 0.0), (1.2, 2.0), (1.8, 0.0), period=2.0))
    with raises(JobError, "capacities_never_overlap", times=1021):
        run(zone(FLAPS), chaos=never)


def test_lost_work_includes_its_share_of_the_hub_cost(tmp_path: Path) -> None:
    options: dict[str, Any] = {"hub": Hub(dollars_per_hour=360.0), "until": "epochs>=20", "out": tmp_path}
    options["checkpoint_every"] = "4 versions"
    with pytest.raises(Killed):
        run(zone(), callbacks=[KillAt(5.0)], **options)
    (event,) = events(run(zone(), resume="latest", **options).records, Resumed)
    assert 0 < event.dollars_of_hub_lost < event.dollars_lost


def test_run_without_compute_resumes_only_without_compute(tmp_path: Path) -> None:
    run(zone(), out=tmp_path)
    with raises(CheckpointError, "other_job", different={"computes": (False, None)}):
        run(zone(), computes=True, until="epochs>=2", out=tmp_path, resume="latest")
    assert run(zone(), until="epochs>=2", out=tmp_path, resume="latest").summary["epochs"] == 2


def test_no_dollars_per_point_before_training() -> None:
    on = Simulated([zone(seconds_to_start=3.0)])
    found = fit(a_job(eval_data=rows()), Asynchronous(), on, until="dollars<=0.3")
    assert found.summary["dollars_per_point"] is None
