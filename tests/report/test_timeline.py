"""The timeline of a run, from the records of its log."""

from itertools import pairwise

import pytest

import oddlot
from oddlot import AdaptiveK, Asynchronous, FastestK, Machine, Simulated
from oddlot.core.commands import Drop, Start
from oddlot.core.events import (
    Cancelled,
    Gone,
    Joined,
    Leaving,
    Lost,
    Ordered,
    Resumed,
    Ticked,
    UpdateRejected,
)
from oddlot.core.records import Record
from oddlot.faults import Chaos
from oddlot.machines import Alive, Hub, Offer, Steps, Zone
from oddlot.report.run_report import RunReport
from oddlot.report.timeline import Interval, RunTimeline
from tests.fits import a_job
from tests.report.conftest import unequal
from tests.report.records import arrived, merged, start

JOINED = Record(0.0, Joined("a"))


def timeline_of(figures: RunReport) -> RunTimeline:
    return RunTimeline.of(figures.records, figures.tally.size, figures.tally.seconds)


def task(number: int, node: str = "a") -> Start:
    """Return the start of a task of four samples."""
    return start(f"{node}:{number}", (0, 4 * number, 4 * number + 4))


def ticks(now: float) -> Record:
    return Record(now, Ticked())


def spells(*records: Record, seconds: float = 0.0) -> dict[str, list[Interval]]:
    """Return the intervals of the machine `a` by state."""
    found = RunTimeline.of(records, 28, seconds).by_machine["a"].spells
    return {state: spells for state, spells in found.items() if spells}


def test_machine_timeline_has_no_gaps(figures: RunReport) -> None:
    run_timeline = timeline_of(figures)
    assert run_timeline.by_machine.keys() == {"a", "b", "c"}
    joined = {r.event.node: r.now for r in figures.records if isinstance(r.event, Joined)}
    for name, of_machine in run_timeline.by_machine.items():
        spells = sorted(spell for spells in of_machine.spells.values() for spell in spells)
        assert (spells[0][0], spells[-1][1]) == (joined[name], run_timeline.seconds)
        assert all(before[1] == after[0] for before, after in pairwise(spells))
    assert run_timeline.by_machine["b"].spells["lost"]
    assert "slow" in [kind for _, kind in run_timeline.by_machine["a"].faults]


def test_timeline_totals_equal_the_figures(figures: RunReport) -> None:
    run_timeline, tally = timeline_of(figures), figures.tally
    by_machine = run_timeline.by_machine.values()
    assert sum(of_machine.dollars for of_machine in by_machine) == pytest.approx(tally.dollars)
    assert sum(of_machine.traffic.bytes_up for of_machine in by_machine) == tally.traffic.bytes_up
    assert sum(of_machine.traffic.bytes_down for of_machine in by_machine) == tally.traffic.bytes_down
    assert run_timeline.staleness.total() == tally.versions, "one update a merge"
    last = run_timeline.progress[-1]
    assert (last.versions, last.samples) == (tally.versions, tally.samples.merged)
    assert any(behind > 0 for behind in run_timeline.staleness)


def test_timeline_has_updates_and_samples_per_merge() -> None:
    strategy = AdaptiveK(k=1, times=((0.2, 3),), samples=2)
    run_timeline = RunTimeline.of(oddlot.fit(a_job(), strategy, unequal(), until="epochs>=3").records, 48)
    assert [results for _, results in run_timeline.results[:3]] == [1, 1, 3]
    assert 0.2 <= run_timeline.results[2][0] <= 0.3
    assert {samples for _, samples in run_timeline.samples} == {2}
    assert run_timeline.results[-1][0] == run_timeline.seconds, "level until the end"


def test_change_at_the_end_adds_no_vertical_line() -> None:
    """The last merge adds no vertical line for its remaining samples, unless it is the only merge."""

    def merges(*at: float) -> list[Interval]:
        begun = Record(0.0, Joined("a"), tuple(task(n) for n in range(len(at))))
        return RunTimeline.of([begun, *(merged(now, f"a:{n}", 4 - n) for n, now in enumerate(at))], 8).samples

    assert merges(1.0, 2.0) == [(1.0, 4.0), (2.0, 4.0)]
    assert merges(1.0) == [(1.0, 4.0), (1.0, 4.0)]


def test_time_without_a_hub_is_not_paid() -> None:
    """No costs are counted from its last record to the resume. Earlier workers are not drawn as lost."""
    records = [
        Record(0.0, Joined("a", 3600.0)),
        ticks(2.0),
        Record(50.0, Resumed(2)),
        Record(51.0, Joined("a.2", 3600.0)),
        ticks(54.0),
    ]
    assert RunTimeline.of(records, 8).by_machine["a"].dollars == pytest.approx(2.0 + 3.0)
    assert spells(*records) == {"waiting": [(0.0, 50.0), (51.0, 54.0)]}


def test_late_update_of_a_lost_worker_is_not_shown_for_the_new() -> None:
    """An update of `a` arrives late, while `a.2` works."""
    found = spells(
        Record(0.0, Joined("a"), (task(0),)),
        Record(1.0, Lost("a")),
        Record(2.0, Joined("a.2"), (task(1, "a.2"),)),
        Record(2.5, Gone("a")),
        Record(3.0, arrived("a:0", 4), remark="echo"),
        Record(9.0, arrived("a.2:1", 4)),
    )
    assert found == {"wasted": [(0.0, 1.0)], "lost": [(1.0, 2.0)], "working": [(2.0, 9.0)]}


def test_wasted_work_is_drawn_as_wasted() -> None:
    """Cancelled, rejected, late and dropped tasks waste their time. A task cancelled in the queue wastes no time."""
    found = spells(
        Record(0.0, Joined("a"), (task(0),)),
        Record(1.0, arrived("a:0", 4), (task(1),)),
        Record(3.0, Cancelled("a:1", "a"), (task(2),)),
        Record(4.0, UpdateRejected("a:2", "NaN"), (task(3),)),
        Record(6.0, arrived("a:3", 4), remark="echo"),
        Record(7.0, Ticked(), (task(4), task(5))),
        Record(8.0, Cancelled("a:5", "a")),
        Record(9.0, arrived("a:4", 4), (task(6),)),
        Record(11.0, arrived("a:6", 4), (Drop("a:6"),)),
        seconds=12.0,
    )
    assert found == {
        "working": [(0.0, 1.0), (7.0, 9.0)],
        "wasted": [(1.0, 6.0), (9.0, 11.0)],
        "waiting": [(6.0, 7.0), (11.0, 12.0)],
    }


def test_cancelled_work_is_drawn_as_wasted() -> None:
    on = Simulated([Machine("fast", 0.01), Machine("slow", 0.1)], computes=False)
    run = oddlot.fit(a_job(), FastestK(k=1), on, until="epochs>=2")
    run_timeline = RunTimeline.of(run.records, 48, run.summary["seconds"])
    assert not run_timeline.by_machine["fast"].spells["wasted"]
    [(begin, end)] = run_timeline.by_machine["slow"].spells["wasted"]
    assert (begin, run_timeline.by_machine["slow"].spells["working"]) == (0.0, [(end, run_timeline.seconds)])


def test_starting_or_terminated_machine_is_not_working() -> None:
    """A machine is billed from 0 to 7 s and ready at 2 s. Its loss is detected at 9 s. The next start is aborted."""
    found = spells(
        Record(0.0, Ordered("a", 1.0)),
        Record(2.0, Joined("a", 1.0), (task(0),)),
        Record(7.0, Gone("a")),
        Record(8.0, arrived("a:0", 4), remark="echo"),
        Record(9.0, Lost("a")),
        Record(10.0, Ordered("a.2", 1.0)),
        Record(11.0, Gone("a.2")),
        Record(12.0, Ordered("a.3", 1.0)),
        Record(12.5, Gone("a.2")),
        Record(13.0, Joined("a.3", 1.0)),
        Record(14.0, Gone("a.3")),
        Record(14.0, Ordered("a.4", 1.0)),
        Record(15.0, Resumed(8)),
        ticks(16.0),
    )
    assert found == {
        "starting": [(0.0, 2.0), (10.0, 11.0), (12.0, 13.0), (14.0, 15.0)],
        "wasted": [(2.0, 7.0)],
        "lost": [(7.0, 10.0), (11.0, 12.0)],
        "waiting": [(13.0, 14.0)],
    }


def test_machine_with_notice_is_drawn_as_left() -> None:
    """The machine is drawn as left until it returns, even if the hub detects it later or is lost in between."""
    falls = Alive(Steps((0.0, 1.0, 9.0), (1.0, 0.0, 1.0)))
    zone = Zone(
        "z", Offer("o", 1.0, Steps((0.0,), (1.0,))), 1, Machine("any", 0.1, notice_seconds=1.0), falls
    )
    run = oddlot.fit(
        a_job(), Asynchronous(), Simulated([zone], hub=Hub(seconds_per_update=0.5)), until="epochs>=2"
    )
    of_machine = RunTimeline.of(run.records, 48).by_machine["z1"]
    assert (run.summary["workers_left"], run.summary["workers_lost"]) == (1, 0)
    assert [begin for begin, _ in of_machine.spells["left"]] == [1.0]
    assert not of_machine.spells["lost"]
    gone = [
        Record(1.0, Lost("a")),
        Record(5.0, Resumed(2)),
        Record(9.0, Joined("a.2")),
        ticks(10.0),
    ]
    assert spells(JOINED, *gone)["lost"] == [(1.0, 9.0)]
    assert spells(JOINED, Record(0.5, Leaving("a")), *gone)["left"] == [(1.0, 9.0)]


def test_failed_starts_are_counted() -> None:
    on = Simulated([Machine("m", 0.05, seconds_to_start=1.0)], computes=False)
    away = Chaos(capacity=Alive(Steps((0.0, 0.5, 3.0), (1.0, 0.0, 1.0))))
    run = oddlot.fit(a_job(), oddlot.Synchronous(), on, until="epochs>=1", chaos=away)
    assert [run.summary[name] for name in ("workers_lost", "workers_left", "starts_lost")] == [0, 0, 1]
    spells = RunTimeline.of(run.records, 48).by_machine["m"].spells
    assert spells["starting"][0] == (0.0, 0.5)
    assert spells["lost"] == [(0.5, 3.0)], "its lane has no gap"


def test_long_run_is_downsampled() -> None:
    assert len(RunTimeline.of([ticks(float(second)) for second in range(10_000)], 8).progress) <= 1_001
