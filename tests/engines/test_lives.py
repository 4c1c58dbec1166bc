"""Simulated machines that are ordered, paid for, preempted and replaced, to the second and the cent."""

from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from oddlot import (
    VCASGD,
    Alive,
    Always,
    Asynchronous,
    Chaos,
    Fault,
    Hub,
    JobError,
    Lifetime,
    Machine,
    Memoryless,
    Offer,
    Pools,
    Simulated,
    Steps,
    Synchronous,
    Trace,
    UsageError,
    Zone,
    fit,
)
from oddlot.core import words as w
from oddlot.core.streams import stream
from oddlot.machines.capacity import Capacity
from oddlot.report.course import Course
from oddlot.run import Run
from oddlot.run_folder import RunFolder
from tests.fits import SAMPLES, a_job, everything, trained

OFFER = Offer("big", dollars_per_hour=3600.0, spot_dollars_per_hour=Steps((0.0,), (360.0,)), speed=2.0)
LIKE = Machine("any", seconds_per_sample=0.1)
"""0.05 s at the offer's speed: 0.4 s a batch of 8"""


def zone(capacity: Capacity = Always(), count: int = 2, name: str = "east", **changes: object) -> Zone:  # noqa: B008 - plain data
    return Zone(name, replace(OFFER, **changes), count, LIKE, capacity)  # type: ignore[arg-type]  # settings all


def run(*fleet: Machine | Zone, epochs: int = 1, hub: Hub = Hub(), until: str = "", **options: object) -> Run:  # noqa: B008 - plain data
    on = Simulated(fleet, hub=hub, maths=False)
    return fit(a_job(), Asynchronous(), on, until=until or f"epochs>={epochs}", **options)  # type: ignore[arg-type]


def times(found: Run, kind: type) -> list[tuple[float, str]]:
    return [(round(r.now, 6), r.event.node) for r in found.records if isinstance(r.event, kind)]  # type: ignore[union-attr]


def test_a_zone_sells_machines_of_its_offer() -> None:
    found = run(zone())
    assert times(found, w.Joined) == [(0.0, "east1"), (0.0, "east2")]
    assert found.summary["seconds"] == pytest.approx(SAMPLES / 2 * 0.05)
    assert found.dollars == pytest.approx(2 * 0.1 * found.summary["seconds"]), "0.1 dollars a second each"
    on_demand = run(zone(Memoryless(0.5)).on_demand())
    assert on_demand.summary["workers_lost"] == 0
    assert on_demand.dollars == pytest.approx(2 * on_demand.summary["seconds"])
    with pytest.raises(UsageError, match="big has no spot price"):
        zone(spot_dollars_per_hour=None)


def test_a_start_takes_its_time_and_is_paid_for() -> None:
    """Each machine is ordered at 0 s and ready at 3 s; one that is gone before has cost its money all the same."""
    found = run(zone(seconds_to_start=3.0))
    assert times(found, w.Joined) == [(3.0, "east1"), (3.0, "east2")]
    assert found.summary["seconds"] == pytest.approx(3.0 + SAMPLES / 2 * 0.05)
    assert found.dollars == pytest.approx(2 * 0.1 * found.summary["seconds"])
    assert found.summary["seconds_without_workers"] == 3.0
    gone = Alive(Steps((0.0, 2.0, 10.0), (1.0, 0.0, 1.0)))
    found = run(zone(gone, count=1, seconds_to_start=3.0))
    assert times(found, w.Ordered) == [(0.0, "east1"), (10.0, "east1.2")]
    assert times(found, w.Gone) == [(2.0, "east1")]
    assert times(found, w.Joined) == [(13.0, "east1.2")]
    assert found.dollars == pytest.approx(0.1 * (2.0 + found.summary["seconds"] - 10.0))
    assert found.dollars == pytest.approx(bill(found))


def bill(found: Run) -> float:
    """What the page of a run draws, machine by machine."""
    course = Course.of(found.records, SAMPLES)
    return sum(lane.dollars for lane in course.lanes.values())


def test_the_bill_follows_the_price() -> None:
    """0.1 dollars a second, twice that from 1 s on; the other zone has prices of its own."""
    rising = Steps((0.0, 1.0), (360.0, 720.0))
    found = run(zone(spot_dollars_per_hour=rising), zone(name="west", count=1))
    seconds = found.summary["seconds"]
    assert seconds > 0.7
    found = run(zone(spot_dollars_per_hour=rising), zone(name="west", count=1), epochs=4)
    seconds = found.summary["seconds"]
    assert found.dollars == pytest.approx(2 * (0.1 + 0.2 * (seconds - 1)) + 0.1 * seconds)
    assert found.dollars == pytest.approx(bill(found))
    assert [r.event for r in found.records if isinstance(r.event, w.Priced)] == [w.Priced("east", 720.0)]


def test_who_comes_later_pays_the_price_of_then() -> None:
    falls, rising = Alive(Steps((0.0, 0.5, 1.5), (1.0, 0.0, 1.0))), Steps((0.0, 1.0), (360.0, 720.0))
    for starting in (0.0, 0.1):
        found = run(zone(falls, count=1, spot_dollars_per_hour=rising, seconds_to_start=starting))
        last = [r.event for r in found.records if isinstance(r.event, w.Joined | w.Ordered)][-1]
        assert last == w.Joined("east1.2", 720.0, "east")
        here = found.summary["seconds"] - 1.0
        assert found.dollars == pytest.approx(0.1 * 0.5 + 0.2 * (here - 0.5))


def test_prices_that_change_for_ever_do_not_keep_a_run_that_nobody_serves() -> None:
    restless = Steps((0.0, 1.0), (1.0, 2.0), 2.0)
    gone = Alive(Steps((0.0, 0.5), (1.0, 0.0)))
    for names in (["east"], ["east", "west"]):
        zones = [zone(gone, count=1, name=name, spot_dollars_per_hour=restless) for name in names]
        with pytest.raises(JobError, match="nothing can happen any more"):
            run(*zones, epochs=9)


def test_what_was_lost_with_a_machine_is_told_in_dollars() -> None:
    """east1 computes from 0 to 0.4 s and from 0.4 s on; it is gone at 0.5 s and back at 1.5 s."""
    falls = Alive(Steps((0.0, 0.5, 1.5), (1.0, 0.0, 1.0)))
    found = run(zone(falls, count=1))
    assert times(found, w.Lost) == [(0.5, "east1")]
    assert times(found, w.Joined) == [(0.0, "east1"), (1.5, "east1.2")]
    assert found.summary["dollars_lost"] == pytest.approx(0.1 * 0.1)
    assert found.summary["seconds_without_workers"] == pytest.approx(1.0)
    assert found.dollars == pytest.approx(0.1 * (found.summary["seconds"] - 1.0))


def test_a_loss_that_nobody_tells_is_noticed_late_and_not_paid_for() -> None:
    """Given work at 0.8 s, gone at 1 s, which is noticed 5 s after it was last given anything."""
    one = Machine(
        "m",
        0.1,
        dollars_per_hour=360.0,
        lifetime=Lifetime(1.0, Trace((1.0, 100.0))),
        seconds_to_return=0.0,
        noticed_after_seconds=5.0,
    )
    seed = next(seed for seed in range(9) if one.lifetime.start(stream(seed, "machine m"))() == 1.0)  # type: ignore[union-attr]
    on = Simulated([one], seed=seed, maths=False)
    found = fit(a_job(), Asynchronous(), on, until="epochs>=1")
    assert times(found, w.Gone) == [(1.0, "m")]
    assert times(found, w.Lost) == [(5.8, "m")]
    assert times(found, w.Joined)[1] == (5.8, "m.2"), "a slot is blocked until then"
    assert found.dollars == pytest.approx(0.1 * (found.summary["seconds"] - 4.8))
    assert found.dollars == pytest.approx(bill(found))


def test_with_notice_a_machine_hands_over_what_it_has_done() -> None:
    told = Zone(
        "east", OFFER, 1, replace(LIKE, notice_seconds=120.0), Alive(Steps((0.0, 0.6, 9.0), (1.0, 0.0, 1.0)))
    )
    job = replace(a_job(), batch=4)
    found = fit(job, Asynchronous(samples=8), Simulated([told], maths=False), until="epochs>=1")
    assert times(found, w.Leaving) == [(0.6, "east1")]
    assert times(found, w.Lost) == [(0.6, "east1")], "it had just ended its minibatch"
    assert found.summary["workers_left"] == 1
    assert found.summary["samples_wasted"] == 0
    (part,) = (r.event.update for r in found.records if isinstance(r.event, w.Arrived) and 0.5 < r.now < 0.7)
    assert part.samples == 4


def test_a_zone_replaces_what_is_killed() -> None:
    found = run(zone(seconds_to_start=1.0), chaos=Chaos([Fault("kill", machine="east1", at_seconds=(1.5,))]))
    assert times(found, w.Joined) == [(1.0, "east1"), (1.0, "east2"), (2.5, "east1.2")]


FALLS = Steps((0.0, 2.0, 7_200.0, 7_201.0), (4.0, 0.0, 2.0, 4.0), 7_202.0)
"""four machines for 2 s, none for two hours, all back within a second; over and over"""


def test_a_zone_may_fall_to_nobody_for_hours_again_and_again(tmp_path: Path) -> None:
    """The run waits, costs nothing but the hub, and every sample counts once."""
    on = Simulated([zone(Alive(FALLS), count=4)], hub=Hub(dollars_per_hour=0.36))
    found, books = trained(
        a_job(), VCASGD(alpha=0.9, newest=True), on, "epochs>=18", RunFolder(tmp_path), shards=4
    )
    assert sorted(books.merged) == everything(SAMPLES, 18)
    summary = found.summary
    assert 3 * 7_198 - 1 < summary["seconds_without_workers"] < 3 * 7_198 + 1
    worked = summary["seconds"] - summary["seconds_without_workers"]
    hub = 0.0001 * summary["seconds"]
    assert summary["dollars"] < hub + 4 * 0.1 * worked
    assert summary["workers_lost"] == 12
    course = Course.of(found.records, SAMPLES)
    assert [count for count, _ in groupby(count for _, count in course.machines)] == [4, *(0, 2, 4) * 3]
    assert course.dollars_per_hour[-1][1] == pytest.approx(0.36 + 4 * 360)


def test_a_resumed_run_finds_the_zone_as_it_is_then(tmp_path: Path) -> None:
    place = Simulated([zone(Alive(FALLS), count=4), zone(Pools(2, 3.0, 0.5, 1.0), name="west")])
    first, _ = trained(a_job(), Synchronous(), place, "seconds>=1", RunFolder(tmp_path))
    again, books = trained(a_job(), Synchronous(), place, "epochs>=20", RunFolder(tmp_path), resume=True)
    assert sorted(books.merged) == everything(SAMPLES, 20)
    assert again.dollars > first.dollars
    joined = [r for r in again.records if isinstance(r.event, w.Joined) and r.event.zone == "west"]
    assert {r.event.dollars_per_hour for r in joined} == {360.0}  # type: ignore[union-attr]


def test_what_was_paid_for_a_start_in_vain_is_told_even_if_nobody_ever_comes() -> None:
    """0.1 dollars a second from 0 to 2 s, and again from 10 s on, when the budget ends it at 0.35 dollars."""
    gone = Alive(Steps((0.0, 2.0, 10.0), (1.0, 0.0, 1.0)))
    found = run(zone(gone, count=1, seconds_to_start=3.0), until="dollars<=0.35")
    assert found.dollars == pytest.approx(0.35)
    assert found.summary["seconds"] == pytest.approx(11.5), "it ends when the money is spent"
    assert found.summary["updates"] == 0


def test_a_price_that_rises_after_a_death_costs_nothing() -> None:
    """Gone at 1 s, noticed at 30.8 s, and the price rises a hundredfold at 10 s."""
    rising = Steps((0.0, 10.0), (360.0, 36_000.0))
    like = replace(LIKE, noticed_after_seconds=30.0)
    falls = Alive(Steps((0.0, 1.0, 60.0), (1.0, 0.0, 1.0)))
    east = Zone("east", replace(OFFER, spot_dollars_per_hour=rising), 1, like, falls)
    found = run(east, until="seconds>=50")
    assert found.dollars == pytest.approx(0.1)
    assert found.summary["dollars_lost"] == pytest.approx(0.1 * 0.2)
    assert found.dollars == pytest.approx(bill(found))


def test_a_zone_that_was_restless_is_quiet_when_a_run_goes_on(tmp_path: Path) -> None:
    """What came and went while the hub was gone happens to nobody."""
    place = Simulated([zone(Memoryless(1.0, 0.5), count=3)])
    trained(a_job(), Synchronous(), place, "seconds>=200", RunFolder(tmp_path))
    run, _ = trained(a_job(), Synchronous(), place, "seconds>=201", RunFolder(tmp_path), resume=True)
    at = next(i for i, r in enumerate(run.records) if isinstance(r.event, w.Resumed))
    again = [r for r in run.records[at:] if isinstance(r.event, w.Joined)]
    assert len([r for r in again if r.now == run.records[at].now]) <= 3
    assert len(again) < 15


def test_a_machine_that_was_barred_before_it_came_comes_afterwards() -> None:
    machine = Machine("late", 0.1, joins_at_seconds=2.0)
    capacity = Alive(Steps((0.0, 1.0, 5.0), (1.0, 0.0, 1.0)))
    found = run(machine, chaos=Chaos(capacity=capacity))
    assert times(found, w.Joined) == [(5.0, "late")]
