"""Tests of the lifecycle of simulated machines: exact times and costs of orders, preemptions and replacements."""

from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from oddlot import VCASGD, Asynchronous, JobError, Machine, Simulated, Synchronous, UsageError, fit
from oddlot.core.events import Arrived, FaultInjected, Gone, Joined, Leaving, Lost, Ordered, Priced
from oddlot.core.support.random_streams import stream
from oddlot.faults import Chaos, Fault
from oddlot.history.run_folder import RunFolder
from oddlot.machines import Hub, Lifetime, Link, Memoryless, Steps, Trace
from oddlot.report.timeline import RunTimeline
from tests.engines.log import events, records_of, times, updates
from tests.engines.market import LIKE, alive, run, when, zone
from tests.fits import SAMPLES, a_job, everything, trained
from tests.transcripts import raises, warns

GONE_AT_2 = alive((0.0, 1.0), (2.0, 0.0), (10.0, 1.0))


def test_zone_machines_have_its_speed_and_price() -> None:
    found = run(zone(speed=2.0))
    assert when(found, Joined) == [(0.0, "east1"), (0.0, "east2")]
    assert found.summary["seconds"] == pytest.approx(SAMPLES / 2 * 0.025)
    assert found.dollars == pytest.approx(2 * 0.1 * found.summary["seconds"]), "0.1 dollars a second each"
    with raises(UsageError, "no_spot_price"):
        zone(prices=None)  # type: ignore[arg-type]
    with raises(UsageError, "machine_of_a_zone", machine="m", zone="east"):
        Simulated([Machine("m", 0.1, zone="east")])


def test_on_demand_machines_are_not_preempted() -> None:
    mortal = zone(Memoryless(0.5), like=replace(LIKE, lifetime=Lifetime(1.0)))
    with warns("tasks_outlive_machines"):
        assert run(mortal, until="epochs>=9").summary["workers_lost"] > 0
    found = run(mortal.on_demand(), until="epochs>=9")
    assert found.summary["workers_lost"] == 0
    assert found.dollars == pytest.approx(2 * found.summary["seconds"])


def test_start_takes_time_and_is_paid_for() -> None:
    """Each machine is ordered at 0 s and ready at 3 s. A machine that is preempted before 3 s costs money too."""
    found = run(zone(seconds_to_start=3.0))
    assert when(found, Joined) == [(3.0, "east1"), (3.0, "east2")]
    assert found.summary["seconds"] == pytest.approx(3.0 + SAMPLES / 2 * 0.05)
    assert found.dollars == pytest.approx(2 * 0.1 * found.summary["seconds"])
    assert found.summary["seconds_without_workers"] == 3.0
    found = run(zone(GONE_AT_2, count=1, seconds_to_start=3.0))
    assert when(found, Ordered) == [(0.0, "east1"), (10.0, "east1.2")]
    assert when(found, Gone) == [(2.0, "east1")]
    assert when(found, Joined) == [(13.0, "east1.2")]
    assert found.dollars == pytest.approx(0.1 * (2.0 + found.summary["seconds"] - 10.0))


def test_cost_follows_the_price() -> None:
    """One zone costs 0.1 dollars per second, and 0.2 from 1 s on. The other zone has other prices."""
    rising = Steps((0.0, 1.0), (360.0, 720.0))
    found = run(zone(prices=rising), zone(name="west", count=1), until="epochs>=4")
    seconds = found.summary["seconds"]
    assert found.dollars == pytest.approx(2 * (0.1 + 0.2 * (seconds - 1)) + 0.1 * seconds)
    assert events(found.records, Priced) == [Priced("east", 720.0)]


def test_constant_repeating_price_is_logged_once() -> None:
    assert not events(run(zone(prices=Steps((0.0,), (360.0,), 0.1))).records, Priced)


@pytest.mark.parametrize("starting", [0.0, 0.1])
def test_later_machine_pays_the_current_price(starting: float) -> None:
    falls, rising = alive((0.0, 1.0), (0.5, 0.0), (1.5, 1.0)), Steps((0.0, 1.0), (360.0, 720.0))
    found = run(zone(falls, count=1, prices=rising, seconds_to_start=starting))
    assert events(found.records, Joined, Ordered)[-1] == Joined("east1.2", 720.0, "east")
    assert found.dollars == pytest.approx(0.1 * 0.5 + 0.2 * (found.summary["seconds"] - 1.5))


def test_price_changes_do_not_prevent_a_stall() -> None:
    restless, gone = Steps((0.0, 1.0), (1.0, 2.0), 2.0), alive((0.0, 1.0), (0.5, 0.0))
    for names in (["east"], ["east", "west"]):
        with raises(JobError, "stalled", seconds=0.5, machines=0, traces=names):
            run(*(zone(gone, count=1, name=name, prices=restless) for name in names), until="epochs>=9")


def test_lost_work_is_counted_in_dollars() -> None:
    """east1 starts tasks at 0 and 0.4 s. It is preempted at 0.5 s and returns at 1.5 s."""
    found = run(zone(alive((0.0, 1.0), (0.5, 0.0), (1.5, 1.0)), count=1))
    assert when(found, Lost) == [(0.5, "east1")]
    assert when(found, Joined) == [(0.0, "east1"), (1.5, "east1.2")]
    assert found.summary["dollars_lost"] == pytest.approx(0.1 * 0.1)
    assert found.summary["seconds_without_workers"] == pytest.approx(1.0)
    assert found.dollars == pytest.approx(0.1 * (found.summary["seconds"] - 1.0))


def test_unannounced_loss_is_detected_late_and_costs_nothing() -> None:
    """A machine that receives a task at 0.8 s and is lost at 1 s is detected 5 s after the task was sent."""
    lifetime = Lifetime(1.0, Trace((1.0, 100.0)))
    seed = next(seed for seed in range(9) if lifetime.start(stream(seed, "machine m"))() == 1.0)
    settings = {"dollars_per_hour": 360.0, "seconds_to_return": 0.0, "noticed_after_seconds": 5.0}
    one = Machine("m", 0.1, lifetime=lifetime, **settings)  # type: ignore[arg-type]  # all are numbers
    found = fit(a_job(), Asynchronous(), Simulated([one], seed=seed, computes=False), until="epochs>=1")
    assert when(found, Gone) == [(1.0, "m")]
    assert when(found, Lost) == [(5.8, "m")]
    assert when(found, Joined)[1] == (5.8, "m.2"), "a slot is blocked until then"
    assert found.dollars == pytest.approx(0.1 * (found.summary["seconds"] - 4.8))


@pytest.mark.parametrize(("gone", "noticed"), [(0.3, 5.2), (0.5, 5.4)])
def test_loss_timeout_counts_from_the_last_message(gone: float, noticed: float) -> None:
    """In each round of 0.4 s, the fast machine computes for 0.2 s and waits for the slow machine."""
    quick, slow = (
        Machine(name, pace / 8, noticed_after_seconds=5.0) for name, pace in [("q", 0.2), ("s", 0.4)]
    )
    chaos = Chaos([Fault("kill", "q", at_seconds=(gone,))])
    found = run(quick, slow, strategy=Synchronous(), until="epochs>=9", chaos=chaos)
    assert when(found, Lost) == [(noticed, "q")]
    assert (found.summary["starts_lost"], found.summary["workers_lost"]) == (0, 1)


def test_update_that_arrives_after_a_loss_is_not_lost_money() -> None:
    """The update is in transit when the machine is lost at 0.45 s. The loss is detected at 10 s."""
    link = Link(latency_milliseconds=40)
    mortal = Machine("m", 0.05, dollars_per_hour=3600.0, link=link, noticed_after_seconds=10.0)
    chaos = Chaos([Fault("kill", "m", at_seconds=(0.45,))])
    found = run(mortal, Machine("late", 0.01, joins_at_seconds=20.0), chaos=chaos)
    assert updates(found.records)[0].sender == "m"
    assert found.dollars == pytest.approx(0.45)
    assert found.summary["dollars_lost"] == 0.0


def test_machine_with_notice_returns_its_partial_task() -> None:
    falls = alive((0.0, 1.0), (0.6, 0.0), (9.0, 1.0))
    on = Simulated([zone(falls, count=1, like=replace(LIKE, notice_seconds=120.0))], computes=False)
    found = fit(a_job(batch_size=4), Asynchronous(samples=8), on, until="epochs>=1")
    assert when(found, Leaving) == [(0.6, "east1")]
    assert when(found, Lost) == [(0.6, "east1")], "it had just ended its minibatch"
    assert found.summary["workers_left"] == 1
    assert found.summary["samples_wasted"] == 0
    (part,) = (record for record in records_of(found.records, Arrived) if 0.5 < record.now < 0.7)
    assert part.event.update.samples == 4


def test_zone_replaces_a_killed_machine() -> None:
    found = run(zone(seconds_to_start=1.0), chaos=Chaos([Fault("kill", machine="east1", at_seconds=(1.5,))]))
    assert when(found, Joined) == [(1.0, "east1"), (1.0, "east2"), (2.5, "east1.2")]


def test_zone_without_capacity_waits(tmp_path: Path) -> None:
    """A zone has four machines for 2 s, zero for two hours, and four again. Only the hub costs money in between."""
    falls = alive((0.0, 4.0), (2.0, 0.0), (7_200.0, 2.0), (7_201.0, 4.0), period=7_202.0)
    on = Simulated([zone(falls, count=4)], hub=Hub(dollars_per_hour=0.36))
    strategy, folder = VCASGD(alpha=0.9), RunFolder(tmp_path)
    found, state = trained(a_job(), strategy, on, "epochs>=18", folder, shards=4)
    assert sorted(state.merged) == everything(SAMPLES, 18)
    summary = found.summary
    assert 3 * 7_198 - 1 < summary["seconds_without_workers"] < 3 * 7_198 + 1
    worked = summary["seconds"] - summary["seconds_without_workers"]
    assert summary["dollars"] < 0.0001 * summary["seconds"] + 4 * 0.1 * worked
    assert summary["workers_lost"] == 12
    run_timeline = RunTimeline.of(found.records, SAMPLES)
    assert [count for count, _ in groupby(count for _, count in run_timeline.machines)] == [4, *(0, 2, 4) * 3]
    assert run_timeline.dollars_per_hour[-1][1] == pytest.approx(0.36 + 4 * 360)


def test_failed_starts_are_paid_for() -> None:
    """The machine costs 0.1 dollars per second until 2 s, and from 10 s until the budget of 0.35 dollars is spent."""
    found = run(zone(GONE_AT_2, count=1, seconds_to_start=3.0), until="dollars<=0.35")
    assert found.dollars == pytest.approx(0.35)
    assert found.summary["seconds"] == pytest.approx(11.5), "it ends when the money is spent"
    assert found.summary["updates"] == 0


def test_price_increase_after_a_loss_costs_nothing() -> None:
    """The machine is lost at 1 s, and the loss is detected at 30.8 s. The price rises 100-fold at 10 s."""
    like, rising = replace(LIKE, noticed_after_seconds=30.0), Steps((0.0, 10.0), (360.0, 36_000.0))
    falls = alive((0.0, 1.0), (1.0, 0.0), (60.0, 1.0))
    found = run(zone(falls, count=1, like=like, prices=rising), until="seconds>=50")
    assert found.dollars == pytest.approx(0.1)
    assert found.summary["dollars_lost"] == pytest.approx(0.1 * 0.2)


# --- capacity of the fault injection ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "moves", "joined"),
    [
        (Machine("m", 0.05), [(0.0, 1.0), (0.5, 0.0), (1.0, 1.0)], [(0.0, "m"), (1.0, "m.2")]),
        (Machine("m", 0.1, joins_at_seconds=2.0), [(0.0, 1.0), (1.0, 0.0), (5.0, 1.0)], [(5.0, "m")]),
    ],
    ids=["that would not return of itself", "that was barred before it came"],
)
def test_capacity_trace_returns_a_machine(
    machine: Machine, moves: list[tuple[float, float]], joined: list[tuple[float, str]]
) -> None:
    assert when(run(machine, chaos=Chaos(capacity=alive(*moves))), Joined) == joined


def test_preempted_starting_machine_is_no_longer_paid_for() -> None:
    machine = Machine("m", 0.05, seconds_to_start=1.0, dollars_per_hour=3600.0)
    found = run(machine, chaos=Chaos(capacity=alive((0.0, 1.0), (0.5, 0.0), (3.0, 1.0))))
    message = when(found, Ordered, Gone, Joined)
    assert message == [(0.0, "m"), (0.5, "m"), (3.0, "m.2"), (4.0, "m.2")]
    assert (found.summary["starts_lost"], found.summary["workers_lost"]) == (1, 0)
    assert found.summary["dollars_lost"] == pytest.approx(0.5)
    assert found.dollars == pytest.approx(0.5 + found.summary["seconds"] - 3.0)


def test_no_machine_is_ordered_without_capacity(tmp_path: Path) -> None:
    """Without capacity, no machine is ordered at the start of a run or at its resume at 1.5 s."""
    chaos = Chaos(capacity=alive((0.0, 0.0), (0.5, 2.0), (1.0, 0.0), (30.0, 2.0)))
    fleet = [Machine(name, 0.05, seconds_to_start=0.2, seconds_to_return=0.0) for name in "mn"]
    run(*fleet, until="seconds>=1.5", out=tmp_path, chaos=chaos)
    found = run(*fleet, until="epochs>=3", out=tmp_path, resume="latest", chaos=chaos)
    assert times(found.records, Ordered) == [0.5, 0.5, 30.0, 30.0]


def test_capacity_victims_depend_on_the_chaos_seed() -> None:
    fleet, half = [Machine(f"m{number}", 0.05) for number in range(8)], alive((0.0, 8.0), (0.5, 4.0))

    def victims(seed: int) -> frozenset[str]:
        found = run(*fleet, until="seconds>=1", chaos=Chaos(seed=seed, capacity=half))
        return frozenset(event.node for event in events(found.records, FaultInjected))

    assert victims(1) == victims(1)
    assert len({victims(seed) for seed in range(4)}) > 1
