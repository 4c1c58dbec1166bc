"""The live view of a run, its progress lines, and the summary."""

import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from itertools import count
from typing import Any

import pytest
from rich.console import Console

from oddlot.core.commands import Action, Start, Step
from oddlot.core.events import (
    TOO_LARGE,
    Arrived,
    Evaluated,
    Gone,
    Joined,
    Lost,
    Priced,
    Resumed,
    Stimulus,
    UpdateRejected,
)
from oddlot.core.records import ECHO, Record
from oddlot.core.sample_spans import Span
from oddlot.core.support.text import availability, duration, in_bytes, moment, money, overwritten, went
from oddlot.core.tasks import Facts, Task
from oddlot.history.callback import RunProgress
from oddlot.history.goals import Goal
from oddlot.history.metrics import Tally
from oddlot.report.live_view import NO_WORKER, Opening, Picture, PrintedLines, shown, summary, trouble
from oddlot.report.progress_line import Forecast, ProgressLines, progress, quality
from tests.transcripts import transcribe

RUN = RunProgress("digits", Goal.parse("epochs>=2"), tally=Tally(64))


def record(now: float, event: Stimulus, *actions: Action) -> Record:
    return Record(now, event, actions)


def brings(now: float, task: str, **settings: Any) -> Record:
    """Return the record of an update of 32 samples that is merged when it arrives."""
    arrived = Arrived(Facts(task, task.partition(":")[0], 0, 32, **settings))
    return record(now, arrived, Step({task: 1.0}))


def begins(now: float, task: str, *span: int, dollars_per_hour: float = 0.0) -> Record:
    """Return the record of a worker that joins and starts a task with these samples."""
    node = task.partition(":")[0]
    start = Start(Task(task, node, (Span(0, *span),), 0))
    return record(now, Joined(node, dollars_per_hour), start)


def screen(**settings: Any) -> tuple[Console, Callable[[], str]]:
    """Return a console, and a function that returns its output."""
    file = StringIO()
    return Console(file=file, **settings), file.getvalue


def text(renderable: Any) -> str:
    console, on_it = screen(width=60)
    console.print(renderable)
    return on_it()


def numbers(line: str) -> list[str]:
    return re.findall(r"\d(?:[\d,.]*\d)?", line)


@pytest.fixture
def tally() -> Tally:
    """Return the tally of two workers. The first worker was lost after its 32 samples were merged."""
    tally = Tally(64)
    tally(begins(0.0, "w1:1", 0, 32, dollars_per_hour=36.0))
    tally(begins(0.0, "w2:1", 32, 64))
    tally(brings(2.0, "w1:1", loss=0.5))
    tally(record(3.0, Evaluated(1, {"accuracy": 0.75, "loss": 0.4})))
    tally(record(4.0, Lost("w1")))
    return tally


def test_live_view_has_figures_and_a_row_per_worker(tally: Tally) -> None:
    drawn = text(Picture("digits in [red]", tally).draw())
    transcribe(drawn, spinner="[\u2800-\u28ff]")
    title, figures, model, _, *rows = drawn.splitlines()
    assert "digits in [red]   4.0 s" in title, "brackets are no markup"
    assert numbers(figures) == ["0.5", "1", "0.04", "1"]
    assert numbers(model) == ["0.5000", "0.7500"]
    assert rows[0].split() == ["w1", "lost", "32"]
    assert rows[1].split() == ["w2", "working", "for", "4.0", "s", "0"]
    tally(record(4.0, Gone("starting")))
    tally(record(4.0, Joined("w1.2")))
    assert numbers(progress(tally)) == ["0.5", "1", "0.04", "1", "1"]
    transcribe(progress(tally))
    *_, first, _, _ = text(Picture("", tally).draw()).splitlines()
    assert first.split() == ["w1.2", "waiting", "0"], "its next life takes its row"


def test_progress_line_is_printed_every_five_seconds() -> None:
    now = 100.0
    console, on_it = screen(width=60)
    lines, seconds = ProgressLines("digits", console=console, clock=lambda: now), list[float]()
    for task in range(21):
        now, before = 100.0 + task, on_it()
        lines.on_record(RUN, begins(task, f"w{task}:1", 0, 32))
        lines.on_record(RUN, brings(task, f"w{task}:1"))
        if on_it() != before:
            seconds.append(now - 100)
    lines.say()
    assert seconds == [5, 10, 15, 20]
    versions = [numbers(line)[-1] for line in on_it().splitlines()]
    assert versions == ["5", "10", "15", "20", "21"]
    lines.say()
    assert on_it().count("\n") == len(versions), "the same line is printed once"


def rates(picture: Picture) -> list[str]:
    """Return the samples per second in the picture, if there are any."""
    line = text(picture.draw()).splitlines()[1]
    return numbers(line.removeprefix(progress(picture.tally)))


def test_live_view_shows_the_recent_rate(tally: Tally) -> None:
    picture = Picture("", tally)
    assert rates(picture) == []
    tally(brings(5.0, "w2:1"))
    assert rates(picture) == ["32"]
    assert numbers(quality(tally))[-2:] == ["0.7500", "1"], "of an older version, and not of the newest, 2"
    transcribe(quality(tally))


def test_rate_excludes_the_start_of_workers() -> None:
    fresh = Tally(64)
    picture = Picture("", fresh)
    fresh(begins(0.0, "w1:1", 0, 32))
    for now in (5.0, 10.0):
        fresh.advance(now)
        picture.draw()
    fresh(brings(11.0, "w1:1"))
    assert rates(picture) == ["32"]


def test_large_fleet_shows_the_first_machines() -> None:
    tally = Tally()
    for number in range(100):
        tally(record(0.0, Joined(f"m{number}")))
    tally(record(0.0, Lost("m99")))
    *_, last_row, more, _ = text(Picture("", tally).draw()).splitlines()
    assert last_row.split()[0] == "m15"
    assert numbers(more) == ["84", "1", "83"]
    transcribe(more)


def test_live_view_names_the_reason_for_a_stall(tally: Tally) -> None:
    def why(tally: Tally) -> str:
        message = trouble(tally, list(tally.workers.items()))
        assert message in text(Picture("", tally).draw())
        transcribe(message)
        return message

    assert why(Tally())
    assert not why(tally)
    tally(record(5.0, UpdateRejected("w2:1", "weights have a NaN")))
    assert numbers(why(tally)) == ["1"]
    assert "weights have a NaN" in why(tally)
    tally(record(5.0, UpdateRejected("w2:2", "large", TOO_LARGE)))
    assert numbers(why(tally)) == ["1", "1"]
    tally(record(6.0, Lost("w2")))
    assert why(tally) == NO_WORKER


def test_without_a_terminal_lines_are_printed_at_intervals() -> None:
    accuracies = [Evaluated(version, {"accuracy": version / 8}) for version in range(7)]
    before = [record(0.0, Joined("w0")), record(0.0, accuracies[0]), begins(0.0, "w1:1", 0, 32)]
    resumed: list[Stimulus] = [Resumed(1, 64), Resumed(3, 1_000), Lost("w0")]
    later: dict[float, Stimulus] = {
        0.0: Joined("w1"),
        **{version / 2: accuracies[version] for version in (1, 2, 4, 6)},
        3.5: Lost("w1"),
        3.6: Joined("w1.2"),
        3.7: Lost("w1.2"),
        3.8: Joined("w1.3"),
        3.9: Arrived(Facts("w1.3:2", "w1.3", 0, 32)),
        4.0: Lost("w1.3"),
    }
    console, on_it = screen(width=200)
    with shown(console, "[red]digits", Tally(64)) as view:
        assert isinstance(view, PrintedLines)
        view.on_start(replace(RUN, earlier=[*before, *(record(0.0, event) for event in resumed)]))
        for now, event in later.items():
            view.on_record(RUN, record(now, event))
    transcribe(on_it())
    title, status, *lines = on_it().splitlines()
    assert title == "[red]digits"
    assert numbers(status) == ["0", "0.0", "0.0", "1,000"]
    assert [numbers(line)[0] for line in lines] == ["0.5", "3.0", "3.5", "3.9", "4.0"]
    assert [numbers(line)[-1] for line in lines[:2]] == ["0.1250", "0.7500"]
    assert [NO_WORKER in line for line in lines] == [False, False, True, False, True]


@pytest.mark.parametrize(("now", "lines"), [(30.0, 0), (90.0, 1), (90_000.0, 1)])
def test_long_wait_for_the_first_worker_is_printed(now: float, lines: int) -> None:
    console, on_it = screen(width=200)
    with shown(console, "digits", Tally(64)) as view:
        view.on_record(RUN, record(0.0, Priced("", 1.0)))
        view.on_record(RUN, record(now, Joined("w1")))
        view.on_record(RUN, record(now + 90.0, Joined("w2")))
    transcribe(on_it())
    message = on_it().splitlines()[1:]
    assert [line.startswith(moment(now)) for line in message] == [True] * lines


def test_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console, on_it = screen(force_terminal=True, width=80)
    with shown(console, "digits", Tally(64)) as view:
        assert isinstance(view, PrintedLines)
        view.on_record(RUN, record(0.0, Joined("w1")))
        view.on_interrupt(RUN)
    transcribe(on_it())
    assert "\x1b" not in on_it()
    assert len(on_it().splitlines()) == 2, "the title, and that it stops"


def test_terminal_shows_the_live_view_and_one_resume_line(tally: Tally) -> None:
    console, on_it = screen(force_terminal=True, width=80)
    with shown(console, "digits", tally) as view:
        assert isinstance(view, Opening)
        view.on_start(replace(RUN, earlier=[record(4.0, Resumed(5))]))
        resumed = view.resumed
        view.on_record(RUN, record(5.0, Joined("w3")))
    assert tally.workers["w3"].state == "waiting"
    assert "digits" in on_it()
    assert on_it().count(resumed) == 1
    assert numbers(resumed) == ["1", "0.5", "4.0", "32"]


def test_summary_omits_inapplicable_figures() -> None:
    figures = Tally().summary() | {"ended": "epochs>=3", "ended_version": 0, "run_dir": "runs/[red]digits-1"}
    figures |= {"metrics": {"accuracy": 0.5, "loss": 1.5}, "loss": 1.5, "samples_skipped": 0}
    figures |= {"samples_assigned": 4000, "samples_merged": 3000, "samples_wasted": 1000}

    def rows(virtual: bool, **changes: Any) -> list[str]:
        message = summary("digits", figures | changes, virtual).plain
        transcribe(message)
        return message.splitlines()

    local = rows(virtual=False)
    assert numbers(local[0]) == ["0.5000", "1.5000"]
    assert any(numbers(row) == ["4,000", "3,000", "1,000", "25.0"] for row in local)
    assert "runs/[red]digits-1: model" in text(summary("", figures, False)), "brackets are no markup"
    simulated = rows(virtual=True, workers_lost=2)
    assert sum("$0" in row for row in simulated) == 1, "the cost"
    assert len(simulated) == len(local) + 2
    assert any(numbers(row) == ["2", "3"] for row in rows(virtual=True, workers_lost=2, starts_lost=3))
    best = {"version": 1_234, "metrics": {"loss": 0.25, "accuracy": 0.75}}
    assert any(numbers(row) == ["0.2500", "0.7500", "1,234"] for row in rows(virtual=False, best=best))
    met = {"ended": "accuracy>=0.9", "ended_version": 7, "versions": 9, "wasted": {"lost": 900, "late": 100}}
    met |= {"samples_assigned": 4_100, "samples_skipped": 12, "samples_returned": 80}
    message = [numbers(row) for row in rows(virtual=True, **met)]
    assert message[:2] == [["0.5000", "1.5000", "7"], ["0.9", "0.0", "9"]], "what was measured at version 7"
    final = [numbers(row) for row in rows(virtual=True, **met, evaluated_version=9)]
    assert final[:2] == [["0.5000", "1.5000"], ["0.9", "7", "0.0", "9"]], (
        "the goal was met two versions earlier"
    )
    stopped = [numbers(row) for row in rows(virtual=True, **met, evaluated_version=7)]
    assert stopped[:2] == message[:2]
    assert ["4,100", "3,000", "1,000", "24.4", "900", "100", "12", "80", "8"] in message


@pytest.mark.parametrize(
    ("changes", "virtual", "message"),
    [
        ({}, False, []),
        ({}, True, ["100", "2"]),
        ({"workers_lost": 1}, False, ["100", "2"]),
        (
            {"availability": 0.5712, "workers_mean": 1.234, "seconds_without_workers": 4.29},
            False,
            ["57.1", "1.23"],
        ),
        ({"availability": None, "workers_mean": None}, True, []),
    ],
)
def test_availability_is_shown_when_relevant(
    changes: dict[str, Any], virtual: bool, message: list[str]
) -> None:
    """Availability is shown for simulated fleets, and for missing local workers. Older summaries lack it."""
    figures = {"seconds": 10.0, "availability": 1.0, "workers_mean": 2.0}
    assert numbers(availability(figures | changes, virtual)) == message


def test_numbers_are_formatted_with_units() -> None:
    seconds = {4.25: "4.2 s", 59.99: "60.0 s", 200: "3 min 20 s", 11_100: "3 h 05 min", 3.6e300: "1e+297 h"}
    dollars = {0.0: "$0", 0.00412: "$0.0041", 1234.5: "$1,234.50"}
    sizes = {999: "999 B", 74_044_800: "74 MB", 5e15: "5,000.0 TB"}
    for written, expected in ((duration, seconds), (money, dollars), (in_bytes, sizes)):
        assert {number: written(number) for number in expected} == expected


def test_each_period_without_workers_is_printed_once() -> None:
    """The message is repeated only if a worker has returned an update since, even a late one."""
    console, on_it = screen(width=100)
    lines, now = PrintedLines(console, Tally(64), ""), count(1.0)
    for number, remark in enumerate(["", None, ECHO, None], 1):
        node = f"w.{number}"
        lines.on_record(RUN, begins(next(now), f"{node}:1", 0, 8))
        if remark is not None:
            lines.on_record(RUN, Record(next(now), Arrived(Facts(f"{node}:1", node, 0, 8)), (), remark))
        lines.on_record(RUN, record(next(now), Lost(node)))
    assert on_it().count(NO_WORKER) == 2


def test_lost_and_overwritten_updates_are_shown_only_if_any() -> None:
    for message, counts in (
        (overwritten({"overwritten": 26, "versions": 48}), ["26", "48"]),
        (overwritten({"overwritten": 0, "versions": 48}), []),
        (overwritten({"versions": 48}), []),  # an older summary has no such key
        (went(1_234, 0, 5_678), ["1,234", "5,678"]),
        (went(0, 0, 0), []),
    ):
        assert numbers(message) == counts
        assert bool(message) == bool(counts)
        transcribe(message)


@pytest.mark.parametrize(
    ("until", "seconds"),
    [("versions>=4", 30.0), ("epochs>=5 or versions>=2", 10.0), ("loss<=0.1", None), ("versions>=1", None)],
)
def test_remaining_time_uses_the_rate_since_the_first_worker(
    until: str, seconds: float | None, tally: Tally
) -> None:
    forecast = Forecast(Goal.parse(until))
    assert forecast.left(Tally(64), now=90.0) == ""
    before = Tally(64)
    before(begins(0.0, "w1:1", 0, 32))
    assert forecast.left(before, now=100.0) == ""
    assert forecast.left(tally, now=110.0) == (f"about {duration(seconds)} left" if seconds else "")
