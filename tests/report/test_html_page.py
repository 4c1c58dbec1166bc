"""The report page: its contents, and its rendering in a browser."""

import json
import re
import subprocess
from collections import Counter
from dataclasses import replace
from html import unescape
from operator import attrgetter
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import pytest

import oddlot
from oddlot import Asynchronous, Machine, Simulated
from oddlot.core.events import FaultInjected, Resumed
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import OddlotError, UsageError
from oddlot.faults import Chaos, Fault
from oddlot.planner.plan_page import plan_page
from oddlot.report.comparison_plots import ACROSS
from oddlot.report.html_page import MAX_BARS, MAX_FAULTS, page, write_page
from oddlot.report.live_log import KILLED
from oddlot.report.page_style import hash_of
from oddlot.report.run_report import RunReport
from oddlot.report.run_tables import FIGURES, provenance, readable
from oddlot.report.timeline import RunTimeline
from tests.browser import CHROMIUM, needs_chromium
from tests.command import Oddlot
from tests.fits import a_job
from tests.planner.plans import a_plan, option
from tests.report.conftest import unequal
from tests.report.html import classes, marks, parsed, plots, table, those, ticks, words
from tests.run.test_resume import KillAt, Killed
from tests.transcripts import raises, transcribe

OF_ALL = ["lanes", "staleness", "bytes", "waste"]
"""Plots that each run has."""
FIRST = ["accuracy over seconds", "loss over seconds", "lanes", "bill"]
"""Plots that are not collapsed."""
PLOTS = [
    *FIRST,
    *(f"{metric} over {figure}" for metric in ("accuracy", "loss") for figure in ACROSS[1:]),
    *ACROSS[1:],
    *(f"level of {what}" for what in ("machines", "dollars_per_hour", "samples")),
    *OF_ALL[1:],
]
HOW = [
    *(
        "date",
        "started by",
        "host",
        "software",
        "workload",
        "parameters",
        "strategy",
        "optimizer",
        "learning rate",
    ),
    *("batch", "effective batch", "workers", "seed", "goal"),
]
TEXT_TAGS = {"h1", "h2", "p", "th", "td", "figcaption", "span", "summary", "dt"}
"""Elements with text."""
LOOKS = """
window.onerror = told => document.body.dataset.error = told;
for (const fold of document.querySelectorAll("details")) fold.open = true;
addEventListener("load", () => {
  const figures = {};
  for (const figure of document.querySelectorAll("figure")) {
    const drawn = [...figure.querySelectorAll(".mark")].filter(mark => {
      const box = mark.getBoundingClientRect(), style = getComputedStyle(mark);
      const colors = [style.fill, style.stroke, style.backgroundColor];
      return colors.some(color => !["none", "rgba(0, 0, 0, 0)"].includes(color)) && box.width + box.height > 0;
    });
    figures[figure.dataset.plot] = drawn.length;
  }
  const outside = performance.getEntriesByType("resource").map(entry => entry.name);
  const width = document.documentElement.clientWidth;
  const cut = [...document.body.querySelectorAll("*")].filter(each => {
    const box = each.getBoundingClientRect();
    return box.width > 0 && (box.left < -1 || box.right > width + 1);
  }).map(each => `${each.tagName} ${each.textContent.slice(0, 30)}`);
  const plot = document.querySelector("svg.plot"), box = plot.getBoundingClientRect();
  plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.right, clientY: box.top }));
  const tip = document.querySelector("#tip").textContent;
  document.body.dataset.seen = JSON.stringify({ figures, outside, width, cut, tip });
});
"""
FRAME = """
<iframe src="page.html" style="border: 0; width: 360px; height: 900px"></iframe><script>
addEventListener("load", () => {
  document.body.dataset.seen = document.querySelector("iframe").contentDocument.body.dataset.seen;
});
</script>
"""
"""A page that shows the report in a narrow frame, because browser windows have a minimum width."""
SECONDS, VERSIONS = attrgetter("tally.seconds"), attrgetter("tally.versions")


def made(*runs: RunReport) -> Element:
    return parsed(page(runs))


def fitted(folder: Path, strategy: Strategy, on: Simulated, until: str, **options: Any) -> RunReport:
    """Run a job of `count` samples, and return the figures from its folder."""
    oddlot.fit(a_job(count=options.pop("count", 48)), strategy, on, until=until, out=folder, **options)
    return RunReport.read(folder)


def test_page_has_every_plot_and_table(figures: RunReport) -> None:
    text = made(figures)
    assert [*plots(text)] == PLOTS
    assert all(marks(figure) for (figure,) in plots(text).values())
    folded = {key for fold in text.iter("details") for key in plots(fold)}
    assert [key for key in PLOTS if key not in folded] == FIRST
    summary, how = those(text, "div", "one")
    assert [row[0] for row in table(summary)] == [
        "accuracy",
        "loss",
        *(name for name in FIGURES if name not in {"store", "best weights", "combine"}),
    ]
    assert [row[0] for row in table(how)] == HOW
    assert [*map(words, those(text, "p", "verdict"))] == [figures.verdict]
    (lanes,) = plots(text)["lanes"]
    states = {classes(swatch)[1] for swatch in those(lanes, "i", "swatch")}
    assert states == {"working", "wasted", "waiting", "lost", "fault"}
    looks = [swatch.get("class") for swatch in text.iter("i") if "line" in classes(swatch)]
    assert looks.count("swatch c0 line") == 4, "the evaluation's loss over four things"
    how.clear()  # differs between machines
    message = (part for part in text.iter() if part.tag in TEXT_TAGS or "name" in classes(part))
    parts = (words(part) for part in message if not {"tick", "track"} & {*classes(part)})
    transcribe("\n".join(dict.fromkeys(parts)), number=r"(?<![\w/-])\d+([.,]\d+)*")


def test_page_of_several_runs_shares_plots(figures: RunReport) -> None:
    """Plots over time and the legend are shared. Each run has its own verdict and machines."""
    both = tuple(replace(figures, folder=Path(name)) for name in ("one", "other"))
    text = made(*both)
    found = plots(text)
    assert Counter({key: len(each) for key, each in found.items()}) == Counter([*PLOTS, *OF_ALL, "bill"])
    assert [len(marks(found[key][0])) for key in ("versions", "samples")] == [2, 2], "overlaid"
    legend, *_ = those(text, "div", "shared")
    looks = [swatch.get("class") for swatch in legend.iter("i")]
    assert looks == ["swatch c0 line", "swatch c1 line", "swatch training dashed"]
    assert [run.verdict for run in both] == [*map(words, those(text, "p", "verdict"))][1:]
    one, other = (ticks(lanes, "middle") for lanes in found["lanes"])
    assert one == other, "one scale"
    transcribe("\n".join(map(words, [*text.iter("h1"), *legend])))


def test_runs_of_unequal_length_have_their_own_axes(figures: RunReport, plain: Path) -> None:
    """A run without prices is not in plots over dollars."""
    both = figures, RunReport.read(plain)
    found = plots(made(*both))
    for key, ends in {
        "loss over seconds": [run.tally.seconds for run in both],
        "loss over versions": [run.tally.versions for run in both],
        "loss over dollars": [figures.tally.dollars],
    }.items():
        areas = [those(figure, "svg", "plot")[0] for figure in found[key]]
        assert [float(area.attrib["data-x"].split()[1]) for area in areas] == pytest.approx(ends)
        assert len({area.attrib["data-y"] for area in areas}) == 1, "one scale upwards"


def test_figures_are_compared_with_the_first_run(figures: RunReport, plain: Path) -> None:
    both = figures, RunReport.read(plain)
    rows = {row[0]: row[1:] for row in table(made(*both))}
    times, versions = ([value(run) for run in both] for value in (SECONDS, VERSIONS))
    assert rows["time"][2] == f"{times[1] / times[0]:.3g}x"
    assert rows["versions"][2] == f"{versions[1] / versions[0]:.3g}x"
    assert (rows["cost"][2], rows["accuracy"][2]) == ("", ""), "the other one has none"
    assert rows["verdict"][:2] == [str(run.proof) for run in both]
    real = replace(both[1], settings=both[1].settings | {"engine": {"kind": "local"}})
    rows = {row[0]: row[1:] for row in table(made(both[0], real))}
    assert (rows["time"][2], rows["samples per second"][2]) == ("", ""), "of another kind of clock"


def test_provenance_omits_missing_or_invalid_entries(figures: RunReport) -> None:
    """Entries that are missing in run.json or have another form are left out."""
    message = provenance(figures.settings)
    assert [*message] == HOW
    assert (message["seed"], message["batch"], message["learning rate"]) == ("0", "8", "0.1")
    assert message["parameters"] == "27 in 4 tensors"
    odd = {
        "parameters": {"a": "x"},
        "started": ["now"],
        "engine": 3,
        "run": None,
        "samples": "many",
        "optimizer": [],
    }
    assert {*provenance(figures.settings | odd)} < {*HOW}
    old = {key: figures.settings[key] for key in ("job", "strategy")}
    assert [*provenance(old)] == ["workload", "strategy"]


def test_segments_have_a_table(tmp_path: Path) -> None:
    """Only a run with several segments has one. Invalid entries in run.json are left out."""
    first = fitted(tmp_path, oddlot.Synchronous(), unequal(), "versions>=4")
    assert not those(made(first), "div", "segments")
    again: dict[str, Any] = {"resume": "latest", "new_segment": True}
    run = fitted(tmp_path, Asynchronous(samples=4), unequal(), "versions>=9", **again)
    (segments,) = those(made(run), "div", "segments")
    head, *rows = [[*map(words, row)] for row in segments.iter("tr")]
    assert head == ["from version", "strategy", "optimizer", "batch", "optimizer state"]
    assert [(row[0], row[1], row[3], row[4]) for row in rows] == [
        ("0", "synchronous: exact = false", "8", ""),
        ("4", "asynchronous: samples = 4, damping = 1.0", "8", "kept"),
    ]
    assert run.plain()["settings"]["segments"][1]["first_version"] == 4
    invalid: list[Any] = [3, ["a", "b"], [{}, {}]]
    for odd in invalid:
        assert not those(made(replace(run, settings=run.settings | {"segments": odd})), "div", "segments")


def test_run_without_prices_has_no_cost(plain: Path) -> None:
    text = made(RunReport.read(plain))
    assert not those(text, "p", "empty")
    assert not [key for key in plots(text) if "dollars" in key or "accuracy" in key or key == "bill"]
    assert "cost" not in dict(row for row in table(text) if len(row) == 2)


def test_tooltips_of_bars_have_units(figures: RunReport) -> None:
    (of_bytes,), (of_dollars,) = (plots(made(figures))[key] for key in ("bytes", "bill"))
    assert all(re.search(r": [\d.]+ k?B up, [\d.]+ k?B down$", message) for message in marks(of_bytes))
    assert all(re.search(r": \$[\d.]+$", message) for message in marks(of_dollars))


def test_log_text_is_escaped(figures: RunReport) -> None:
    fault = FaultInjected("<b>", "<script>alert(1)</script>", "<i>")
    text = made(replace(figures, faults=[(1.0, fault)] * (MAX_FAULTS + 1)))
    assert table(text)[-MAX_FAULTS:] == [["1.00 s", fault.kind, fault.node, fault.fault]] * MAX_FAULTS


def test_failed_proof_is_highlighted(figures: RunReport) -> None:
    fault = OddlotError("position 3 is in two updates", "merged_twice")
    bad = replace(figures, proof=replace(figures.proof, faults=(fault,)))
    assert [*map(words, those(made(bad), "p", "bad"))] == [bad.verdict]
    assert [len(those(made(bad, figures), tag, "bad")) for tag in ("p", "td")] == [2, 1]
    assert not [tag for tag in ("p", "td") if those(made(figures, figures), tag, "bad")]
    assert bad.plain()["audit_errors"] == [str(fault)]


def test_failure_reason_precedes_the_verdict(figures: RunReport) -> None:
    for ended in ("failed: row 7 is bad", KILLED):
        failed = replace(figures, summary=figures.summary | {"ended": ended})
        first, second = [*made(failed).iter("p")][:2]
        assert (classes(first), words(first), words(second)) == (["bad"], ended, failed.verdict)


def test_many_runs_have_a_wide_table_and_distinct_colors(figures: RunReport) -> None:
    """Runs without a loss are included. Their legend has no loss."""
    tables = [classes(those(made(*[figures] * count), "div", "runs")[0]) for count in (3, 4)]
    assert tables == [["runs"], ["runs", "many"]]
    untrained = replace(figures, records=figures.records[:1])
    text = page([untrained] * 12)
    assert len(set(re.findall(r"\.c\d+ \{ --is: ([^;]+); \}", text))) == 12
    legend, *_ = those(parsed(text), "div", "shared")
    assert [classes(swatch)[1] for swatch in legend.iter("i")] == [f"c{number}" for number in range(12)]


# --- runs of other kinds -------------------------------------------------------------------------


def test_adaptive_levels_are_plotted(tmp_path: Path) -> None:
    """The levels of a strategy with one update per merge are not drawn."""
    strategy = oddlot.AdaptiveK(k=1, times=((0.2, 3),), samples=2)
    adapts = fitted(tmp_path / "adaptive", strategy, unequal(), "epochs>=3")
    usual = fitted(tmp_path / "usual", Asynchronous(samples=1), unequal(), "versions>=9")
    levels = {"level of results", "level of samples"}
    assert [levels & plots(made(run)).keys() for run in (adapts, usual)] == [levels, set()]
    message = {row[0]: row[1] for row in table(made(adapts))}["strategy"]
    assert message == readable(adapts.settings["strategy"])
    assert "switch = gradients (window = 20, threshold = 5, burn_in = 0), " in message, "without its state"


def test_many_machines_and_stalenesses_are_shortened(tmp_path: Path) -> None:
    """The machines are ordered by their numbers."""
    names = [*(f"east{number}" for number in range(59)), "west1"]
    on = Simulated([Machine(name, 0.001 * (1 + len(name) % 7)) for name in reversed(names)], computes=False)
    text = page([fitted(tmp_path, Asynchronous(), on, "epochs>=4", count=600)])
    found = plots(parsed(text))
    shown, ranges = ([*ticks(found[key][0], "end")] for key in ("lanes", "staleness"))
    assert (len(shown), shown[0], shown[-1]) == (48, "east0", "west1")
    assert shown == [name for name in names if name in shown]
    assert len(ranges) <= MAX_BARS
    assert not all(name.isdigit() for name in ranges)
    assert len(text) < 300_000
    transcribe(words(found["lanes"][0][0]))


def test_resumed_run_has_consistent_figures(tmp_path: Path) -> None:
    """The cost of lost work is included, and its faults are listed."""
    faults = [Fault("kill", "b", at_seconds=(1.9,)), Fault("slow", "a", at_seconds=(0.1,), factor=1)]
    options: dict[str, Any] = {"chaos": Chaos(faults), "checkpoint_every": "40 versions"}
    run = (tmp_path, Asynchronous(), unequal(), "epochs>=20")
    with pytest.raises(Killed):
        fitted(*run, callbacks=[KillAt(2.5)], **options)
    figures = fitted(*run, resume="latest", **options)
    lost = next(r.event for r in figures.records if isinstance(r.event, Resumed))
    lanes = RunTimeline.of(figures.records, 48, figures.tally.seconds).by_machine.values()
    paid, up = sum(lane.dollars for lane in lanes), sum(lane.traffic.bytes_up for lane in lanes)
    assert (paid + lost.dollars_lost, up + lost.bytes_up_lost) == pytest.approx(
        (figures.tally.dollars, figures.tally.traffic.bytes_up)
    )
    assert min(lost.dollars_lost, lost.bytes_up_lost) > 0
    found = plots(made(figures))
    for key in ("bytes", "bill"):
        assert len(ticks(found[key][0], "end")) == len(lanes) + 1, "lost work has a bar"
    over_time = [key for key, (plot,) in found.items() if marks(plot, "moment")]
    assert len(over_time) == 8, "each plot over time, and the lanes"
    assert figures.fault_counts == {"slow": 1, "kill": 1}, "a fault that continues after a resume counts once"
    assert [row[1] for row in table(made(figures)) if len(row) == 4].count("kill") == 1


def test_samples_returned_at_a_deadline_have_a_bar(tmp_path: Path) -> None:
    on = Simulated([Machine("quick", 0.01), Machine("slow", 0.1)], computes=False)
    run = fitted(tmp_path, oddlot.Deadline(oddlot.LocalSGD(steps=4), 0.4), on, "versions>=2")
    assert run.tally.samples.returned > 0
    (waste,) = plots(made(run))["waste"]
    assert str(run.tally.samples.returned) in [mark.rpartition(" ")[2] for mark in marks(waste)]


def test_downloaded_samples_have_a_bar(tmp_path: Path) -> None:
    on = Simulated([Machine("a", 0.01), Machine("b", 0.01)])
    run = fitted(tmp_path, oddlot.VCASGD(), on, "epochs>=1", shards=4)
    lanes = RunTimeline.of(run.records, 48).by_machine.values()
    assert sum(lane.traffic.bytes_data for lane in lanes) == run.tally.traffic.bytes_data > 0
    assert len(marks(plots(made(run))["bytes"][0], "c2")) == 2


# --- the file ------------------------------------------------------------------------------------


def test_report_overwrites_only_html_pages(oddlot: Oddlot, eventful: Path) -> None:
    log = eventful / "records.jsonl"
    before = log.read_bytes()
    places = {str(log): "not_a_page", str(eventful): "not_a_file", "": "not_a_file", "page.pdf": "not_html"}
    for place, code in places.items():
        answer = oddlot.rejects(code, "report", str(eventful), "--html", place)
        assert not answer.out, "it is told before all the rest"
    assert log.read_bytes() == before
    Path("page.html").touch()  # as mktemp does
    for _ in range(2):
        assert oddlot("report", str(eventful), "--html", "page.html").code == 0


def test_unwritable_page_raises_missing_folder(figures: RunReport, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "page.html"
    with raises(UsageError, "missing_folder", path=str(path), folder=str(path.parent)):
        write_page([figures], path)


def test_report_command_writes_the_page(oddlot: Oddlot, figures: RunReport, plain: Path) -> None:
    runs, both = [str(figures.folder), str(plain)], [figures, RunReport.read(plain)]
    answer = oddlot("report", *runs, "--html", "both.html")
    assert answer.code == 0
    assert Path("both.html").read_text() == page(both)
    assert [answer.out.count(words) for words in ("both.html", *(run.verdict for run in both))] == [1, 1, 1]
    oddlot.rejects("several_runs", "report", *runs, "--json")


# --- in a browser --------------------------------------------------------------------------------


def in_browser(text: str, folder: Path) -> dict[str, Any]:
    """Return the rendering of a page with a width of 360 pixels in a browser.

    This has the drawn marks of each figure, requests, errors, elements beyond the edges, and the values at the end of
    the first plot.
    """
    text = text.replace("script-src ", f"script-src {hash_of(LOOKS)} ")
    (folder / "page.html").write_text(text.replace("</body>", f"<script>{LOOKS}</script></body>"))
    (folder / "frame.html").write_text(FRAME)
    assert CHROMIUM
    flags = ["headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking"]
    flags += [
        "disable-component-update",
        "disable-sync",
        "disable-quic",
        "enable-logging=stderr",
        "hide-scrollbars",
    ]
    flags += ["allow-file-access-from-files"]
    flags += [f"user-data-dir={folder / 'profile'}", "virtual-time-budget=5000", "dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *(f"--{flag}" for flag in flags), f"file://{folder / 'frame.html'}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert seen, done.stdout[-1000:]
    found: dict[str, Any] = json.loads(unescape(seen[1]))
    assert found["width"] == 360
    return found


@needs_chromium
def test_browser_draws_every_plot_of_a_narrow_page(figures: RunReport, plain: Path, tmp_path: Path) -> None:
    seen = in_browser(page([figures]), tmp_path)
    assert list(seen["figures"]) == PLOTS
    assert all(seen["figures"].values()), seen["figures"]
    assert seen["outside"] == seen["cut"] == []
    last = figures.tally.quality.history[-1]["accuracy"]
    assert seen["tip"] == f"{figures.tally.seconds:.4g} seconds\nevaluation: {last:.4g}"
    several = [
        figures,
        RunReport.read(plain),
        replace(figures, folder=plain),
        replace(figures, folder=tmp_path),
    ]
    assert in_browser(page(several), tmp_path)["cut"] == []


@needs_chromium
def test_narrow_page_of_a_plan_shows_time_and_cost(tmp_path: Path) -> None:
    options = [option(8, "on demand", why="3 rehearsals; the fleet has no other machines"), option(4)]
    seen = in_browser(plan_page(a_plan(*options), "Plan"), tmp_path)
    assert seen["outside"] == seen["cut"] == []
