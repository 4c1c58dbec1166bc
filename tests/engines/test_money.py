"""What simulated machines cost through stops, resumes, starts in vain and late answers: the log alone says all."""

from dataclasses import replace
from pathlib import Path

import pytest

from oddlot import (
    Alive,
    Always,
    Asynchronous,
    Chaos,
    CheckpointError,
    Fault,
    Hub,
    JobError,
    Lifetime,
    Link,
    Machine,
    Offer,
    Simulated,
    Steps,
    Synchronous,
    UsageError,
    Zone,
    fit,
)
from oddlot.core import words as w
from oddlot.log import surviving
from oddlot.machines.capacity import Capacity
from oddlot.observe import tally_of
from oddlot.report.course import Course
from oddlot.report.figures import Figures
from oddlot.run import Run
from tests.fits import SAMPLES, a_job, rows
from tests.test_resume import KillAt, Killed

LIKE = Machine("any", seconds_per_sample=0.05)
"""0.4 s a batch of 8"""


def zone(capacity: Capacity = Always(), prices: Steps = Steps((0.0,), (360.0,)), **offer: float) -> Zone:  # noqa: B008 - plain data
    """Two machines at 0.1 dollars a second, on the spot market."""
    return Zone("east", Offer("big", 3600.0, prices, **offer), 2, LIKE, capacity)  # type: ignore[arg-type]  # numbers all


def run(on: Simulated, until: str, folder: Path | None = None, **options: object) -> Run:
    return fit(a_job(), Asynchronous(), on, until=until, out=folder, **options)  # type: ignore[arg-type]


def adds_up(found: Run) -> None:
    """The log, the summary and the machines' own accounts say the same."""
    tally = tally_of(found.records, SAMPLES)
    assert tally.dollars == pytest.approx(found.dollars)
    assert tally.seconds == pytest.approx(found.summary["seconds"])
    course = Course.of(surviving(found.records), SAMPLES)
    resumed = [r.event for r in found.records if isinstance(r.event, w.Resumed)]
    lost = sum(event.dollars_lost - event.dollars_of_hub_lost for event in resumed)
    machines = sum(lane.dollars for lane in course.lanes.values())
    assert machines + tally.bill.dollars_of_hub + lost == pytest.approx(found.dollars)


def test_a_budget_that_is_raised_again_and_again_is_one_budget(tmp_path: Path) -> None:
    """Two machines at 0.1 dollars a second each, whose tasks take 400 s: nothing is ever brought."""
    on = Simulated([replace(zone(), machine=replace(LIKE, seconds_per_sample=50.0))], maths=False)
    for dollars, resume in ((5, False), (6, True), (7, True)):
        found = run(on, f"dollars<={dollars}", tmp_path, resume=resume)
        assert found.dollars == pytest.approx(dollars)
        assert found.summary["seconds"] == pytest.approx(dollars / 0.2)
        adds_up(found)


def test_the_hub_s_time_alone_is_in_the_log_when_a_run_stops(tmp_path: Path) -> None:
    """Two machines are gone after 2 s, and the run is stopped at 5,000 s."""
    on = Simulated([zone(Alive(Steps((0.0, 2.0), (2.0, 0.0))))], hub=Hub(dollars_per_hour=36.0), maths=False)
    found = run(on, "seconds>=5000", tmp_path)
    assert found.dollars == pytest.approx(50 + 2 * 0.2)
    adds_up(found)
    again = run(on, "seconds>=5001", tmp_path, resume=True)
    assert again.dollars == pytest.approx(50.01 + 2 * 0.2)
    assert again.summary["seconds_without_workers"] == pytest.approx(4_999)


def test_who_was_starting_at_a_stop_is_another_one_afterwards(tmp_path: Path) -> None:
    on = Simulated([zone(seconds_to_start=3.0)], maths=False)
    run(on, "seconds>=1", tmp_path)
    found = run(on, "epochs>=1", tmp_path, resume=True)
    ordered = [r.event.node for r in found.records if isinstance(r.event, w.Ordered)]
    assert len(set(ordered)) == len(ordered) == 4
    adds_up(found)


def test_a_zone_is_as_it_is_then_when_a_run_goes_on(tmp_path: Path) -> None:
    """Its machines are there at once, at the price of then."""
    on = Simulated([zone(prices=Steps((0.0, 0.5, 1.5), (360.0, 720.0, 1440.0)))], maths=False)
    run(on, "seconds>=1", tmp_path)
    found = run(on, "epochs>=4", tmp_path, resume=True)
    joined = [(r.now, r.event) for r in found.records if isinstance(r.event, w.Joined)]
    assert joined[2:] == [(1.0, w.Joined(f"east{n}.2", 720.0, "east")) for n in (1, 2)]
    assert [r.now for r in found.records if isinstance(r.event, w.Priced)] == [0.5, 1.5]
    adds_up(found)


def test_machines_that_never_get_ready_are_given_up(tmp_path: Path) -> None:
    flaps = Alive(Steps((0.0, 1.0), (2.0, 0.0), 2.0))
    with pytest.raises(JobError, match="1,022 machines in a row were taken away while they started"):
        run(Simulated([zone(flaps, seconds_to_start=3.0)], maths=False), "epochs>=1", tmp_path)
    assert Figures.read(tmp_path).summary["starts_lost"] == 1022, "the last one is among them"
    one = Machine("m", 0.05, seconds_to_start=3.0)
    with pytest.raises(JobError, match="1,011 machines in a row were taken away while they started"):
        run(Simulated([one], maths=False), "epochs>=1", chaos=Chaos(capacity=flaps))


FLAPS = Alive(Steps((0.0, 1.0), (2.0, 0.0), 2.0))


def test_starts_in_vain_end_no_run_that_somebody_trains() -> None:
    """1,400 machines are lost while they start; one beside them needs 48 x 30 s."""
    on = Simulated([zone(FLAPS, seconds_to_start=3.0), Machine("steady", 30.0)], maths=False)
    assert run(on, "epochs>=1").summary["starts_lost"] > 1_400


def test_one_start_that_succeeds_is_luck_again() -> None:
    """Twice 700 machines in a row are lost while they start, and between them two get ready and are preempted."""
    falls = [
        (1000.0 * part + 2 * n + half, 2.0 * (1 - half))
        for part in (0, 2)
        for n in range(350)
        for half in (0, 1)
    ]
    falls += [(900.0, 2.0), (920.0, 0.0), (2900.0, 2.0)]
    seconds, alive = zip(*sorted(falls), strict=True)
    on = Simulated([zone(Alive(Steps(seconds, alive)), seconds_to_start=3.0)], maths=False)
    found = replace(on, machines=[replace(on.machines[0], machine=replace(LIKE, seconds_per_sample=5.0))])  # type: ignore[arg-type]  # a zone
    assert run(found, "epochs>=1").summary["starts_lost"] == 1_400


def test_who_was_lost_while_starting_is_blamed() -> None:
    """Not the one that would come next, which may bring the run to its end."""
    on = zone(FLAPS, seconds_to_start=3.0), Machine("late", 0.05, joins_at_seconds=1031.5)
    assert run(Simulated(on, maths=False), "epochs>=1").summary["starts_lost"] > 1_030
    dear = replace(zone(FLAPS, seconds_to_start=5.0), name="west")
    with pytest.raises(
        JobError, match=r"the last one was east2\.\d+: give it fewer seconds_to_start than 3,"
    ):
        run(Simulated([dear, zone(FLAPS, seconds_to_start=3.0)], maths=False), "epochs>=1")


def test_zones_that_never_agree_with_the_chaos_end_the_run() -> None:
    """One has room in the first second of each two, the other in the last half."""
    never = Chaos(capacity=Alive(Steps((0.0, 1.2, 1.8), (0.0, 1.0, 0.0), 2.0)))
    with pytest.raises(
        JobError, match="1,021 times in a row a machine's zone had room for it while the capacity of"
    ):
        run(Simulated([zone(FLAPS)], maths=False), "epochs>=1", chaos=never)


def test_what_came_in_after_the_end_was_not_paid_for_in_vain() -> None:
    """The answer is on its way when the machine is gone at 0.45 s, and the loss is noticed at 10 s."""
    like = Machine("m", 0.05, dollars_per_hour=3600.0, link=Link(latency_milliseconds=40))
    on = Simulated(
        [replace(like, noticed_after_seconds=10.0), Machine("late", 0.01, joins_at_seconds=20.0)], maths=False
    )
    found = run(on, "epochs>=1", chaos=Chaos([Fault("kill", "m", at_seconds=(0.45,))]))
    assert next(r.event.update.sender for r in found.records if isinstance(r.event, w.Arrived)) == "m"
    assert found.dollars == pytest.approx(0.45)
    assert found.summary["dollars_lost"] == 0.0


def test_a_price_that_repeats_without_a_change_is_told_once() -> None:
    found = run(Simulated([zone(prices=Steps((0.0,), (360.0,), 0.1))], maths=False), "epochs>=1")
    assert not [r for r in found.records if isinstance(r.event, w.Priced)]


def test_what_is_bought_on_demand_stays() -> None:
    mortal = replace(zone(), machine=replace(LIKE, lifetime=Lifetime(1.0)))
    assert run(Simulated([mortal], maths=False), "epochs>=9").summary["workers_lost"] > 0
    assert run(Simulated([mortal.on_demand()], maths=False), "epochs>=9").summary["workers_lost"] == 0


def test_a_hub_alone_may_have_a_budget() -> None:
    on = Simulated([Machine("m", 0.1)], hub=Hub(dollars_per_hour=3600.0), maths=False)
    assert run(on, "dollars<=0.5").summary["seconds"] == pytest.approx(0.5)


def test_only_a_zone_has_machines_of_a_zone() -> None:
    with pytest.raises(UsageError, match="m is of zone 'east': only a Zone makes machines of a zone"):
        Simulated([Machine("m", 0.1, zone="east")])


@pytest.mark.parametrize(("gone", "noticed"), [(0.3, 5.2), (0.5, 5.4)])
def test_a_loss_is_noticed_so_long_after_work_last_came_or_went(gone: float, noticed: float) -> None:
    """In rounds: the quick one computes until 0.2 s and waits until 0.4 s, when it is given more."""
    like = replace(LIKE, seconds_per_sample=0.2 / 8, noticed_after_seconds=5.0)
    quick, slow = replace(like, name="quick"), replace(like, name="slow", seconds_per_sample=0.4 / 8)
    on = Simulated([quick, slow], maths=False)
    chaos = Chaos([Fault("kill", "quick", at_seconds=(gone,))])
    found = fit(a_job(), Synchronous(), on, until="epochs>=9", chaos=chaos)
    assert [r.now for r in found.records if isinstance(r.event, w.Lost)] == [pytest.approx(noticed)]
    assert (found.summary["starts_lost"], found.summary["workers_lost"]) == (0, 1)


def test_chance_of_a_capacity_has_the_seed_of_its_chaos() -> None:
    on = Simulated([Machine(f"m{number}", 0.05) for number in range(8)], maths=False)
    half = Alive(Steps((0.0, 0.5), (8.0, 4.0)))

    def victims(seed: int) -> set[str]:
        found = run(on, "seconds>=1", chaos=Chaos(seed=seed, capacity=half))
        return {r.event.node for r in found.records if isinstance(r.event, w.Struck)}

    assert victims(1) == victims(1)
    assert len({frozenset(victims(seed)) for seed in range(4)}) > 1


def test_who_was_starting_when_its_machine_was_taken_is_paid_for_no_longer() -> None:
    falls = Alive(Steps((0.0, 0.5, 3.0), (1.0, 0.0, 1.0)))
    on = Simulated([Machine("m", 0.05, seconds_to_start=1.0, dollars_per_hour=3600.0)], maths=False)
    found = run(on, "epochs>=1", chaos=Chaos(capacity=falls))
    told = [(r.now, type(r.event).__name__) for r in found.records[:4]]
    assert told == [(0.0, "Ordered"), (0.5, "Gone"), (3.0, "Ordered"), (4.0, "Joined")]
    assert (found.summary["starts_lost"], found.summary["workers_lost"]) == (1, 0)
    assert found.summary["dollars_lost"] == pytest.approx(0.5)
    assert found.dollars == pytest.approx(0.5 + found.summary["seconds"] - 3.0)


def test_nobody_is_ordered_where_a_capacity_has_nobody(tmp_path: Path) -> None:
    """At the beginning, and when a run goes on at 1.5 s."""
    falls = Alive(Steps((0.0, 0.5, 1.0, 30.0), (0.0, 2.0, 0.0, 2.0)))
    on = Simulated(
        [Machine(name, 0.05, seconds_to_start=0.2, seconds_to_return=0.0) for name in "mn"], maths=False
    )
    run(on, "seconds>=1.5", tmp_path, chaos=Chaos(capacity=falls))
    found = run(on, "epochs>=3", tmp_path, resume=True, chaos=Chaos(capacity=falls))
    assert [r.now for r in found.records if isinstance(r.event, w.Ordered)] == [0.5, 0.5, 30.0, 30.0]


def test_lost_work_has_cost_its_part_of_the_hub_too(tmp_path: Path) -> None:
    on = Simulated([zone()], hub=Hub(dollars_per_hour=360.0))
    often: dict[str, object] = {"checkpoint_every": "4 versions"}
    with pytest.raises(Killed):
        run(on, "epochs>=20", tmp_path, observers=[KillAt(5.0)], **often)
    found = run(on, "epochs>=20", tmp_path, resume=True, **often)
    (event,) = [r.event for r in found.records if isinstance(r.event, w.Resumed)]
    assert 0 < event.dollars_of_hub_lost < event.dollars_lost
    adds_up(found)


def test_a_run_without_maths_goes_on_without_maths_only(tmp_path: Path) -> None:
    on = Simulated([zone()], maths=False)
    run(on, "epochs>=1", tmp_path)
    with pytest.raises(CheckpointError, match="maths: False in the run"):
        run(replace(on, maths=True), "epochs>=2", tmp_path, resume=True)
    assert run(on, "epochs>=2", tmp_path, resume=True).summary["epochs"] == 2


def test_nothing_is_worth_money_before_anything_is_trained() -> None:
    on = Simulated([zone(seconds_to_start=3.0)])
    found = fit(a_job(evaluation=rows()), Asynchronous(), on, until="dollars<=0.3")
    assert found.summary["dollars_per_point"] is None


def test_a_capacity_brings_back_whom_it_has_taken() -> None:
    """Also machines that would not return of themselves."""
    falls = Alive(Steps((0.0, 0.5, 1.0), (1.0, 0.0, 1.0)))
    found = run(Simulated([Machine("m", 0.05)], maths=False), "epochs>=1", chaos=Chaos(capacity=falls))
    assert [r.now for r in found.records if isinstance(r.event, w.Joined)] == [0.0, 1.0]
