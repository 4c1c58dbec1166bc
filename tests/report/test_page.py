"""A page about runs: what it says, and what a browser draws of it."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import (
    VCASGD,
    AdaptiveK,
    Alive,
    Asynchronous,
    Chaos,
    Deadline,
    FastestK,
    Fault,
    Hub,
    Lifetime,
    LocalSGD,
    Machine,
    Offer,
    Simulated,
    Steps,
    Synchronous,
    Zone,
)
from oddlot.core import words as w
from oddlot.core.errors import UsageError
from oddlot.core.spans import Span
from oddlot.report.charts import Axis, Bar, Line, bars, lanes, lines
from oddlot.report.course import Course
from oddlot.report.figures import Figures
from oddlot.report.page import page, write_page
from oddlot.units import samples
from tests.command import Oddlot
from tests.fits import a_job, rows
from tests.test_resume import KillAt, Killed

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PLOTS = [
    *(f"loss over {figure}" for figure in ("time", "versions", "samples", "dollars")),
    *(f"accuracy over {figure}" for figure in ("time", "versions", "samples", "dollars")),
    *(f"{figure} over time" for figure in ("versions", "samples", "dollars", "machines", "dollars per hour")),
    "samples of a result over time",
    "what every machine did",
    "staleness of the merged updates, in versions",
    "samples: used, and wasted why",
    "bytes on every link",
    "the bill",
]
NOTICED = Machine("any", 0.1, notice_seconds=1.0)
FALLS = Alive(Steps((0.0, 1.0, 9.0), (1.0, 0.0, 1.0)))
SLOW = Hub(seconds_per_update=0.5)
COUNTS_MARKS = """
<script>
window.onerror = told => document.body.dataset.error = told;
addEventListener("load", () => {
  const figures = {};
  for (const figure of document.querySelectorAll("figure")) {
    const drawn = [...figure.querySelectorAll(".mark")].filter(mark => {
      const box = mark.getBoundingClientRect(), style = getComputedStyle(mark);
      const painted = [style.fill, style.stroke].some(color => !["none", "rgba(0, 0, 0, 0)"].includes(color));
      return painted && box.width + box.height > 0;
    });
    figures[figure.querySelector("figcaption").textContent] = drawn.length;
  }
  const outside = performance.getEntriesByType("resource").map(entry => entry.name);
  document.body.dataset.seen = JSON.stringify({ figures, outside });
});
</script>
"""


def fleet(price: float = 3600.0) -> Simulated:
    """Unequal machines that cost something, one of which comes and goes."""
    short = Lifetime(1.0)
    return Simulated(
        [
            Machine("a", 0.01, dollars_per_hour=price),
            Machine("b", 0.02, dollars_per_hour=price, lifetime=short, seconds_to_return=0.5),
            Machine("c", 0.03, dollars_per_hour=price),
        ]
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of everything that a page shows."""
    folder = tmp_path_factory.mktemp("run")
    job = replace(a_job(), evaluation=rows(20), metrics={"accuracy": oddlot.accuracy}, name="sides & <lines>")
    chaos = Chaos([Fault("slow", "a", at_seconds=(1,), factor=1), Fault("corrupt", at_versions=(9,))])
    oddlot.fit(job, Asynchronous(), fleet(), until="epochs>=10", out=folder, chaos=chaos)
    return folder


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing is evaluated and nothing costs anything."""
    folder = tmp_path_factory.mktemp("plain")
    oddlot.fit(a_job(), Synchronous(), fleet(price=0.0), until="epochs>=2", out=folder)
    return folder


# --- the course of a run -------------------------------------------------------------------------


def test_a_machine_s_time_is_filled_without_gaps(run: Path) -> None:
    figures = Figures.read(run)
    course = Course.of(figures.records, figures.tally.size, figures.tally.seconds)
    assert course.lanes.keys() == {"a", "b", "c"}
    for name, lane in course.lanes.items():
        spells = sorted(spell for spells in lane.spells.values() for spell in spells)
        joined = next(
            r.now for r in figures.records if isinstance(r.event, w.Joined) and r.event.node == name
        )
        assert spells[0][0] == joined
        assert spells[-1][1] == course.seconds
        assert all(before[1] == after[0] for before, after in pairwise(spells))
    assert course.lanes["b"].spells["lost"]
    assert "slow" in [kind for _, kind in course.lanes["a"].faults]


def test_what_is_shown_adds_up_to_the_figures(run: Path) -> None:
    figures = Figures.read(run)
    tally = figures.tally
    course = Course.of(figures.records, tally.size, tally.seconds)
    assert sum(lane.dollars for lane in course.lanes.values()) == pytest.approx(tally.dollars)
    assert sum(lane.bytes_up for lane in course.lanes.values()) == tally.bytes_up
    assert sum(lane.bytes_down for lane in course.lanes.values()) == tally.bytes_down
    assert course.staleness.total() == tally.versions, "one update a merge"
    last = course.progress[-1]
    assert (last.versions, last.samples) == (tally.versions, tally.samples_merged)
    assert any(behind > 0 for behind in course.staleness)


def test_how_many_results_of_how_many_samples_a_merge_used_is_drawn(tmp_path: Path) -> None:
    """Where a run adapts either of them; one result at a time, without batches, is worth no plot."""
    adaptive = AdaptiveK(k=1, times=((0.2, 3),), samples=2)
    oddlot.fit(a_job(), adaptive, fleet(), until="epochs>=3", out=tmp_path / "adaptive")
    oddlot.fit(a_job(), Asynchronous(samples=1), fleet(), until="versions>=9", out=tmp_path / "plain")
    adapts, plain = (Figures.read(tmp_path / name) for name in ("adaptive", "plain"))
    course = Course.of(adapts.records, adapts.tally.size, adapts.tally.seconds)
    assert [results for _, results in course.results[:3]] == [1, 1, 3]
    assert 0.2 <= course.results[2][0] <= 0.3
    assert {samples for _, samples in course.samples} == {2}
    assert course.results[-1][0] == course.seconds, "level until the end"
    told = [f"<figcaption>{what} over time" for what in ("results in a merge", "samples of a result")]
    assert all(title in page([adapts]) for title in told)
    assert not any(title in page([plain]) for title in told)
    switch = "switch=ByGradients(window=20, threshold=5, burn_in=0)"  # without its state
    text = page([adapts]).replace("<wbr>", "")
    assert f"<th>strategy</th><td>AdaptiveK(k=1, rise=1, most=None, {switch}, times=(" in text


def test_what_changes_at_the_very_end_is_no_upright_stroke() -> None:
    """Such as the last merge, of what is left of the data; but a run of one merge shows it."""

    def merges(*at: float) -> list[tuple[float, float]]:
        tasks = [w.Task(f"a:{n}", "a", (Span(0, 4 * n, 4 * n + 4 - n),), 0) for n in range(len(at))]
        records = [w.Record(0.0, w.Joined("a"), tuple(map(w.Start, tasks)))]
        for n, now in enumerate(at):
            records.append(
                w.Record(now, w.Arrived(w.Facts(f"a:{n}", "a", 0, 4 - n)), (w.Step({f"a:{n}": 1.0}),))
            )
        return Course.of(records, 8).samples

    assert merges(1.0, 2.0) == [(1.0, 4.0), (2.0, 4.0)]
    assert merges(1.0) == [(1.0, 4.0), (1.0, 4.0)]


def test_only_time_has_the_unit_that_fits() -> None:
    drawn = lines("t", "versions", "loss", [Line("x", [(0.0, 4.0), (5400.0, 8.0)], 0)], 5400.0)
    assert ">versions</text>" in drawn
    assert ">2000</text>" in drawn


def test_amounts_are_drawn_from_zero() -> None:
    drawn = [Line("x", [(0.0, 4.0), (1.0, 8.0)], 0)]
    assert lines("t", "seconds", "machines", drawn, 1.0, from_zero=True).count(">0</text>") == 2
    assert lines("t", "seconds", "loss", drawn, 1.0).count(">0</text>") == 1


def test_machines_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = ["east9", "east10", "west1"]
    on = Simulated([Machine(name, 0.01) for name in reversed(names)])
    oddlot.fit(a_job(), Asynchronous(), on, until="epochs>=1", out=tmp_path)
    text = page([Figures.read(tmp_path)])
    assert re.findall(r">(east9|east10|west1)</text>", text)[:3] == names


def test_a_resumed_run_s_figures_add_up_too(tmp_path: Path) -> None:
    """Lost work has cost its money, and its faults are told."""
    chaos = Chaos([Fault("kill", "b", at_seconds=(1.9,)), Fault("slow", "a", at_seconds=(0.1,), factor=1)])
    options: dict[str, Any] = {"out": tmp_path, "chaos": chaos, "checkpoint_every": "40 versions"}
    with pytest.raises(Killed):
        oddlot.fit(a_job(), Asynchronous(), fleet(), until="epochs>=20", observers=[KillAt(2.5)], **options)
    oddlot.fit(a_job(), Asynchronous(), fleet(), until="epochs>=20", resume=True, **options)
    figures = Figures.read(tmp_path)
    lost = next(r.event for r in figures.records if isinstance(r.event, w.Resumed))
    course = Course.of(figures.records, figures.tally.size, figures.tally.seconds)
    paid = sum(lane.dollars for lane in course.lanes.values())
    assert paid + lost.dollars_lost == pytest.approx(figures.tally.dollars)
    assert lost.dollars_lost > 0
    text = page([figures])
    assert text.count(">lost work</text>") == 2, "its bytes and its dollars"
    assert lost.bytes_up_lost > 0
    assert sum(lane.bytes_up for lane in course.lanes.values()) + lost.bytes_up_lost == figures.tally.bytes_up
    assert text.count('class="mark moment"') == 8, "in each plot over time, and in the lanes"
    assert figures.struck == "1 slow, 1 kill", "what goes on after the resume has struck once"
    assert text.count("<td>kill b at_seconds=1.9</td>") == 1


def test_nobody_is_paid_while_there_is_no_hub() -> None:
    """From its last record to the resume; and what was there before is no longer drawn as lost."""
    records = [
        w.Record(0.0, w.Joined("a", 3600.0)),
        w.Record(2.0, w.Ticked()),
        w.Record(50.0, w.Resumed(2)),
        w.Record(51.0, w.Joined("a.2", 3600.0)),
        w.Record(54.0, w.Ticked()),
    ]
    course = Course.of(records, 8)
    assert course.lanes["a"].dollars == pytest.approx(2.0 + 3.0)
    assert course.lanes["a"].spells["waiting"] == [(0.0, 50.0), (51.0, 54.0)]
    assert not course.lanes["a"].spells["lost"]


def test_a_late_answer_of_an_earlier_life_says_nothing_about_this_one() -> None:
    """A delayed answer of `a`, while `a.2` works."""
    given = w.Start(w.Task("a.2:2", "a.2", (Span(0, 4, 8),), 0))
    records = [
        w.Record(0.0, w.Joined("a"), (w.Start(w.Task("a:1", "a", (Span(0, 0, 4),), 0)),)),
        w.Record(1.0, w.Lost("a")),
        w.Record(2.0, w.Joined("a.2"), (given,)),
        w.Record(2.5, w.Gone("a")),
        w.Record(3.0, w.Arrived(w.Facts("a:1", "a", 0, 4)), remark="echo"),
        w.Record(9.0, w.Arrived(w.Facts("a.2:2", "a.2", 0, 4))),
    ]
    spells = Course.of(records, 8).lanes["a"].spells
    assert (spells["wasted"], spells["working"]) == ([(0.0, 1.0)], [(2.0, 9.0)])


def test_what_was_worked_for_nothing_is_drawn_so() -> None:
    """Cancelled, refused, late or dropped; but not a task that was cancelled while it stood behind another one."""

    def given(*numbers: int) -> tuple[w.Start, ...]:
        return tuple(w.Start(w.Task(f"a:{n}", "a", (Span(0, 4 * n, 4 * n + 4),), 0)) for n in numbers)

    records = [
        w.Record(0.0, w.Joined("a"), given(0)),
        w.Record(1.0, w.Arrived(w.Facts("a:0", "a", 0, 4)), given(1)),
        w.Record(3.0, w.Cancelled("a:1", "a"), given(2)),
        w.Record(4.0, w.Refused("a:2", "NaN"), given(3)),
        w.Record(6.0, w.Arrived(w.Facts("a:3", "a", 0, 4)), remark="echo"),
        w.Record(7.0, w.Ticked(), given(4, 5)),
        w.Record(8.0, w.Cancelled("a:5", "a")),
        w.Record(9.0, w.Arrived(w.Facts("a:4", "a", 0, 4)), given(6)),
        w.Record(11.0, w.Arrived(w.Facts("a:6", "a", 0, 4)), (w.Drop("a:6"),)),
    ]
    spells = {
        state: spells for state, spells in Course.of(records, 28, 12.0).lanes["a"].spells.items() if spells
    }
    assert spells == {
        "working": [(0.0, 1.0), (7.0, 9.0)],
        "wasted": [(1.0, 6.0), (9.0, 11.0)],
        "waiting": [(6.0, 7.0), (11.0, 12.0)],
    }


def test_a_rival_s_cancelled_work_is_seen_in_its_lane(tmp_path: Path) -> None:
    on = Simulated([Machine("fast", 0.01), Machine("slow", 0.1)], maths=False)
    oddlot.fit(a_job(), FastestK(k=1), on, until="epochs>=2", out=tmp_path)
    found = Figures.read(tmp_path)
    lanes = Course.of(found.records, 48, found.tally.seconds).lanes
    assert not lanes["fast"].spells["wasted"]
    [(begin, end)] = lanes["slow"].spells["wasted"]
    unfinished = [(end, found.tally.seconds)]
    assert (begin, lanes["slow"].spells["working"]) == (0.0, unfinished)
    assert '<i class="swatch wasted ' in page([found])


def test_a_machine_that_starts_or_is_gone_unnoticed_is_not_at_work() -> None:
    """It is paid for from 0 to 7 s, works from 2 s on, and is missed at 9 s; the next start is given up."""
    given = w.Start(w.Task("a:1", "a", (Span(0, 0, 4),), 0))
    records = [
        w.Record(0.0, w.Ordered("a", 1.0)),
        w.Record(2.0, w.Joined("a", 1.0), (given,)),
        w.Record(7.0, w.Gone("a")),
        w.Record(8.0, w.Arrived(w.Facts("a:1", "a", 0, 4)), remark="echo"),
        w.Record(9.0, w.Lost("a")),
        w.Record(10.0, w.Ordered("a.2", 1.0)),
        w.Record(11.0, w.Gone("a.2")),
        w.Record(12.0, w.Ordered("a.3", 1.0)),
        w.Record(12.5, w.Gone("a.2")),
        w.Record(13.0, w.Joined("a.3", 1.0)),
        w.Record(14.0, w.Gone("a.3")),
        w.Record(14.0, w.Ordered("a.4", 1.0)),
        w.Record(15.0, w.Resumed(8)),
        w.Record(16.0, w.Ticked()),
    ]
    spells = {state: spells for state, spells in Course.of(records, 8).lanes["a"].spells.items() if spells}
    assert spells == {
        "starting": [(0.0, 2.0), (10.0, 11.0), (12.0, 13.0), (14.0, 15.0)],
        "wasted": [(2.0, 7.0)],
        "lost": [(7.0, 10.0), (11.0, 12.0)],
        "waiting": [(13.0, 14.0)],
    }


def test_a_machine_that_leaves_with_notice_is_drawn_so() -> None:
    """Also where the hub takes it in later; and until it comes again, whatever happens to the hub."""
    on = Simulated([Zone("z", Offer("o", 1.0, Steps((0.0,), (1.0,))), 1, NOTICED, FALLS)], hub=SLOW)
    run = oddlot.fit(a_job(), Asynchronous(), on, until="epochs>=2")
    lane = Course.of(run.records, 48).lanes["z1"]
    assert (run.summary["workers_left"], run.summary["workers_lost"]) == (1, 0)
    assert [begin for begin, _ in lane.spells["left"]] == [1.0]
    assert not lane.spells["lost"]
    gone = [w.Record(0.0, w.Joined("a")), w.Record(1.0, w.Lost("a")), w.Record(5.0, w.Resumed(2))]
    lane = Course.of([*gone, w.Record(9.0, w.Joined("a.2")), w.Record(10.0, w.Ticked())], 8).lanes["a"]
    assert lane.spells["lost"] == [(1.0, 9.0)]
    left = [gone[0], w.Record(0.5, w.Leaving("a")), *gone[1:], w.Record(9.0, w.Joined("a.2"))]
    assert Course.of(left, 8).lanes["a"].spells["left"] == [(1.0, 9.0)]


def test_starts_in_vain_are_told(tmp_path: Path) -> None:
    on = Simulated([Machine("m", 0.05, seconds_to_start=1.0)], maths=False)
    away = Chaos(capacity=Alive(Steps((0.0, 0.5, 3.0), (1.0, 0.0, 1.0))))
    oddlot.fit(a_job(), Synchronous(), on, until="epochs>=1", chaos=away, out=tmp_path)
    found = Figures.read(tmp_path)
    assert "0 lost, 0 left with notice, 1 lost while they started" in page([found])
    spells = Course.of(found.records, 48).lanes["m"].spells
    assert spells["starting"][0] == (0.0, 0.5)
    assert spells["lost"] == [(0.5, 3.0)], "its lane has no gap"


def test_a_line_that_another_one_hides_is_wider() -> None:
    same, other, part = (
        [(0.0, 1.0), (1.0, 2.0), (2.0, 1.5)],
        [(0.0, 1.0), (2.0, 1.0)],
        [(0.5, 1.5), (1.0, 2.0)],
    )
    for drawn, widths in (
        ([same, other, same], ["3.8", "", ""]),
        ([same, same, same], ["5.8", "3.8", ""]),
        ([same] * 9, [*["5.8"] * 7, "3.8", ""]),
        ([part, same], ["3.8", ""]),
        ([[(0.0, 1.0), (0.5, 2.0), (2.0, 2.0)], [(0.0, 1.0), (0.5, 2.0), (2.0, 0.0)]], ["", ""]),
        ([[(0.0, 2.0), (1.0, 2.0)], [(0.0, 2.0), (2.0, 2.0)], other], ["3.8", "", ""]),
        ([[(1.0, 1.0)], [(1.0, 1.0)], [(1.0, 2.0)]], ["8.0", "", ""]),
        ([[(1.0, 1.0)], other], ["", ""]),
        ([[(0.0, 1.0), (2.0, 2.0)], [(0.0, 2.0), (2.0, 1.0)]], ["", ""]),
    ):
        for colors in (range(len(drawn)), [0] * len(drawn)):
            rows = [Line("a", points, color) for points, color in zip(drawn, colors, strict=True)]
            found = re.findall(
                r'<path class="mark line(?: point)? c\d+"(?: style="stroke-width: ([0-9.]+)")?',
                lines("t", "x", "y", rows, 2.0),
            )
            assert found == (widths if len({*colors}) > 1 else [""] * len(drawn)), "of one colour none"


def test_what_stands_behind_a_bar_has_room() -> None:
    """Its text ends within the picture, however long it is."""
    figure = bars("t", [Bar("a", {"": 1.0}, "x" * 60), Bar("b", {"": 0.5}, "y")])
    at = float(re.search(r'<text class="tick" x="([0-9.]+)"[^>]*>x', figure)[1])  # type: ignore[index]  # it is there
    assert at + 60 * 6.5 <= 860


def test_what_a_deadline_handed_back_has_a_bar(tmp_path: Path) -> None:
    machines = [Machine("quick", 0.01), Machine("slow", 0.1)]
    deadline = Deadline(LocalSGD(steps=4), 0.4)
    oddlot.fit(a_job(), deadline, Simulated(machines), until="versions>=2", out=tmp_path)
    run = Figures.read(tmp_path)
    assert run.tally.samples_returned > 0
    assert f">{run.tally.samples_returned:,} " in page([run]).partition("handed back</text>")[2]


def test_samples_travel_too(tmp_path: Path) -> None:
    on = Simulated([Machine("a", 0.01), Machine("b", 0.01)])
    oddlot.fit(a_job(), VCASGD(), on, until="epochs>=1", shards=4, out=tmp_path)
    text = page([figures := Figures.read(tmp_path)])
    course = Course.of(figures.records, 48)
    assert sum(lane.bytes_data for lane in course.lanes.values()) == figures.tally.bytes_data > 0
    assert text.count(" B of samples") == 3, "of all, and of each machine"


def test_lanes_of_several_runs_have_one_scale(run: Path, plain_run: Path) -> None:
    both = [Figures.read(folder) for folder in (run, plain_run)]
    figures = re.findall(r"<figure>(?:(?!</figure>).)*what every machine did.*?</figure>", page(both))
    axes = [re.findall(r'text-anchor="middle" x="([\d.]+)"', figure) for figure in figures]
    assert len(axes) == 2
    assert axes[0] == axes[1]


@pytest.mark.parametrize(
    ("end", "unit", "ticks"),
    [
        (400.0, "seconds", ["0", "100", "200", "300", "400"]),
        (5400.0, "minutes", ["0", "20", "40", "60", "80"]),
        (18_000.0, "hours", ["0", "1", "2", "3", "4", "5"]),
    ],
)
def test_an_axis_of_time_has_the_unit_that_fits(end: float, unit: str, ticks: list[str]) -> None:
    line = lines("t", "seconds", "loss", [Line("x", [(0.0, 4.0), (end, 8.0)], 0)], end)
    for drawn in (line, lanes("t", {"a": {"working": [(0.0, end)]}}, {}, end)):
        assert re.findall(r'"middle" x="[\d.]+" y="[\d.]+">([\d.k]+)<', drawn) == ticks
        assert f">{unit}</text>" in drawn


def test_a_long_run_is_thinned_out() -> None:
    records = [w.Record(float(second), w.Ticked()) for second in range(100_000)]
    assert len(Course.of(records, 8).progress) <= 1_001


def test_the_axis_of_time_goes_to_the_very_end() -> None:
    axis = Axis.until(3.4)
    assert (axis.low, axis.high, axis.ticks) == (0.0, 3.4, (0.0, 1.0, 2.0, 3.0))
    assert Axis.until(0.0)(0.0) == axis(0.0)
    assert len(Axis.until(0.3).ticks) == 4


# --- the page ------------------------------------------------------------------------------------


class Sound(HTMLParser):
    """Every tag is closed, and nothing has an address outside."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "wbr"}:
            self.open.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onclick"}

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "path"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_sound_and_needs_nothing_from_outside(run: Path, plain_run: Path) -> None:
    for folders in ([run], [run, plain_run]):
        text = page([Figures.read(folder) for folder in folders])
        parser = Sound()
        parser.feed(text)
        assert parser.open == []
        assert "://" not in text
        assert "url(" not in text
        assert "<script" not in text
        assert "sides &amp; &lt;lines&gt;" in text
        assert "exactly once: every one of the 48 positions" in text


def test_what_is_not_known_is_said(plain_run: Path) -> None:
    text = page([Figures.read(plain_run)])
    empty = re.findall(r'<p class="empty">([^<]*)</p>', text)
    assert empty == ["the bill: nothing of this is in the log"]
    assert "dollars over time" not in text
    assert "accuracy" not in text


def test_what_a_log_says_is_no_markup(run: Path) -> None:
    figures = Figures.read(run)
    bad = replace(figures, faults=[(1.0, w.Struck("<b>", "<script>alert(1)</script>", "<i>"))])
    text = page([bad])
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_a_proof_that_fails_is_seen(run: Path) -> None:
    figures = Figures.read(run)
    bad = replace(figures, proof=replace(figures.proof, faults=("position 3 is in two updates",)))
    assert "<td class=bad>NOT exactly once: position 3 is in two updates; assigned for nothing: " in page(
        [bad]
    )


def test_many_machines_and_much_staleness_are_cut_short(tmp_path: Path) -> None:
    many = Simulated([Machine(f"m{i}", 0.001 * (1 + i % 7)) for i in range(60)], maths=False)
    oddlot.fit(a_job(count=600), Asynchronous(), many, until="epochs>=4", out=tmp_path)
    text = page([Figures.read(tmp_path)])
    assert "what every machine did (48 of 60)" in text
    assert all(f">m{place}<" in text for place in (0, 59)), "from the first to the last"
    assert re.search(r">\d+ to \d+</text>", text), "ranges of staleness"
    assert len(text) < 300_000


def test_only_a_page_is_written_anew(oddlot: Oddlot, run: Path) -> None:
    log = run / "records.jsonl"
    before = log.read_bytes()
    answer = oddlot("report", str(run), "--html", str(log))
    assert (answer.code, "is no page of oddlot's: name another file" in answer.err) == (2, True)
    assert not answer.out, "it is told before all the rest"
    assert log.read_bytes() == before
    for place in (str(run), ""):
        answer = oddlot("report", str(run), "--html", place)
        assert (answer.code, "it is a folder, and the page is a file" in answer.err) == (2, True)
        assert not answer.out
    Path("page.html").touch()  # as mktemp does
    for _ in range(2):
        assert oddlot("report", str(run), "--html", "page.html").code == 0


def test_a_table_of_many_runs_is_wider_than_the_text(run: Path) -> None:
    one = Figures.read(run)
    assert "<div class='wide many'>" in page([one] * 4)
    assert "<div class='wide many'>" not in page([one] * 3)


def test_several_runs_share_one_legend_and_each_has_its_proof(run: Path, plain_run: Path) -> None:
    """A run alone names its lines where they are."""
    one, other = Figures.read(run), Figures.read(plain_run)
    both, alone = page([one, other]), page([one])
    assert both.count(f'<i class="swatch c0 line"></i>{escape(one.title)}<') == 1
    assert both.count("the same while training") == 1
    assert "<tr><th>proof</th><td>exactly once</td><td>exactly once</td></tr>" in both
    assert f"<h2>{escape(one.title)}</h2><p>{escape(one.told)}</p>" in both
    assert alone.count('<i class="swatch c0 line"></i>evaluation<') == 4, "the loss over four things"
    assert "legend shared" not in alone
    assert f"<td>{escape(one.told)}</td>" in alone


def test_many_runs_have_a_colour_each(tmp_path: Path) -> None:
    """Also those without a loss, of whose legend that is no part."""
    oddlot.fit(
        a_job(), Synchronous(), Simulated([Machine("a", 0.01)], maths=False), until="epochs>=2", out=tmp_path
    )
    text = page([Figures.read(tmp_path)] * 12)
    assert len(set(re.findall(r"\.c\d+ \{ --is: ([^;]+); \}", text))) == 12
    assert 'class="swatch c11 line"' in text
    assert "the same while training" not in text


def test_a_page_that_cannot_be_written_is_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*nowhere/page\.html: there is no folder .*nowhere"):
        write_page([Figures.read(run)], tmp_path / "nowhere" / "page.html")


def test_the_command_writes_it(oddlot: Oddlot, run: Path, plain_run: Path) -> None:
    answer = oddlot("report", str(run), str(plain_run), "--html", "both.html")
    assert answer.code == 0
    assert answer.out.endswith("  page     both.html\n")
    assert answer.out.count("  proof    exactly once") == 2
    written = Path("both.html").read_text()
    assert "<h1>2 runs</h1>" in written
    assert samples(Figures.read(run).tally.summary()) in written
    answer = oddlot("report", str(run), str(plain_run), "--json")
    assert (answer.code, answer.err) == (2, "oddlot: --json is about one run: name one folder\n")


# --- in a browser --------------------------------------------------------------------------------


def in_browser(text: str, folder: Path) -> dict[str, Any]:
    """What a browser makes of the page: marks drawn in each figure, requests, errors."""
    path = folder / "page.html"
    path.write_text(text.replace("</body>", COUNTS_MARKS + "</body>"))
    assert CHROMIUM
    flags = ["headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking"]
    flags += ["disable-component-update", "disable-sync", "disable-quic", "enable-logging=stderr"]
    flags += [f"user-data-dir={folder / 'profile'}", "virtual-time-budget=5000", "dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *(f"--{flag}" for flag in flags), f"file://{path}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    assert "data-error" not in done.stdout
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert seen, done.stdout[-1000:]
    found: dict[str, Any] = json.loads(seen[1].replace("&quot;", '"').replace("&amp;", "&"))
    return found


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_a_browser_draws_every_plot(run: Path, plain_run: Path, tmp_path: Path) -> None:
    seen = in_browser(page([Figures.read(run)]), tmp_path)
    assert list(seen["figures"]) == PLOTS
    assert all(seen["figures"].values()), seen["figures"]
    assert seen["outside"] == []
    both = in_browser(page([Figures.read(run), Figures.read(plain_run)]), tmp_path)
    assert both["figures"]["versions over time"] == 2, "overlaid"
    assert both["figures"]["samples over time"] == 2
