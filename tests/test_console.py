"""What a person sees of a run."""

from io import StringIO
from itertools import count
from typing import Any

import pytest
from rich.console import Console

from oddlot.console import NOBODY, Lines, Picture, progress, quality, shown, summary, went
from oddlot.core import words as w
from oddlot.core.conductor import ECHO
from oddlot.core.spans import Span
from oddlot.observe import Tally
from oddlot.units import duration, in_bytes, money, overwritten


def record(now: float, event: w.Stimulus, *actions: w.Action) -> w.Record:
    return w.Record(now, event, actions)


def text(renderable: Any) -> str:
    console = Console(file=StringIO(), width=60)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture
def tally() -> Tally:
    """Two workers, one of which has brought an update of 32 samples that was merged, and was lost then."""
    tally = Tally(64)
    tally(record(0.0, w.Joined("w1", 36.0), w.Start(w.Task("w1:1", "w1", (Span(0, 0, 32),), 0))))
    tally(record(0.0, w.Joined("w2"), w.Start(w.Task("w2:1", "w2", (Span(0, 32, 64),), 0))))
    arrived = w.Arrived(w.Facts("w1:1", "w1", 0, 32, loss=0.5))
    tally(record(2.0, arrived, w.Step({"w1:1": 1.0})))
    tally(record(3.0, w.Evaluated(1, {"accuracy": 0.75, "loss": 0.4})))
    tally(record(4.0, w.Lost("w1")))
    return tally


def test_the_picture_has_the_figures_and_a_row_for_every_worker(tally: Tally) -> None:
    lines = text(Picture("digits in [red]", tally).draw()).splitlines()
    assert "digits in [red]   4.0 s" in lines[0], "brackets are no markup"
    assert lines[1] == "epoch 0.5   version 1   $0.04   1 lost"
    tally(record(4.0, w.Gone("starting")))
    assert progress(tally).endswith("1 lost, 1 lost starting")
    assert lines[2] == "training loss 0.5000   accuracy 0.7500"
    assert lines[3].split() == ["worker", "state", "samples"]
    assert lines[4].split() == ["w1", "lost", "32"]
    assert lines[5].split() == ["w2", "working", "for", "4.0", "s", "0"]


def test_the_picture_tells_the_rate_of_the_last_draws(tally: Tally) -> None:
    picture = Picture("", tally)
    assert "samples/s" not in text(picture.draw())
    tally(record(5.0, w.Arrived(w.Facts("w2:1", "w2", 0, 32)), w.Step({"w2:1": 1.0})))
    assert "   32 samples/s" in text(picture.draw())


def test_metrics_of_an_older_version_are_told_as_such(tally: Tally) -> None:
    tally(record(5.0, w.Arrived(w.Facts("w2:1", "w2", 0, 32)), w.Step({"w2:1": 1.0})))
    assert quality(tally).endswith("accuracy 0.7500   (of version 1)"), "and not of the newest, which is 2"


def test_a_worker_s_next_life_takes_its_row(tally: Tally) -> None:
    tally(record(5.0, w.Joined("w1.2")))
    drawn = text(Picture("", tally).draw())
    assert "w1.2" in drawn
    assert "w1 " not in drawn


def test_of_a_large_fleet_the_first_machines_are_shown() -> None:
    tally = Tally()
    for number in range(100):
        tally(record(0.0, w.Joined(f"m{number}")))
    tally(record(0.0, w.Lost("m99")))
    drawn = text(Picture("", tally).draw())
    assert "and 84 more  1 lost, 83 waiting" in drawn
    assert "m15" in drawn
    assert "m16" not in drawn


def test_the_picture_says_why_nothing_happens(tally: Tally) -> None:
    assert "starting the workers" in text(Picture("", Tally()).draw())
    assert NOBODY not in text(Picture("", tally).draw())
    tally(record(5.0, w.Refused("w2:1", "weights have a NaN")))
    assert "1 updates refused, the last: weights have a NaN" in text(Picture("", tally).draw())
    tally(record(6.0, w.Lost("w2")))
    assert NOBODY in text(Picture("", tally).draw())


def test_without_a_terminal_there_is_a_line_now_and_then() -> None:
    console = Console(file=StringIO(), width=200)
    with shown(console, "[red]digits", Tally(64)) as observer:
        assert isinstance(observer, Lines)
        observer.replay(record(0.0, w.Joined("w0")))
        observer.replay(record(0.0, w.Evaluated(0, {"accuracy": 0.1})))
        observer.replay(record(0.0, w.Joined("w1"), w.Start(w.Task("w1:1", "w1", (Span(0, 0, 32),), 0))))
        observer.replay(record(0.0, w.Resumed(1, 64)))
        observer.replay(record(0.0, w.Resumed(3, 1_000)))
        observer.replay(record(0.0, w.Lost("w0")))
        observer(record(0.0, w.Joined("w1")))
        for now, version in zip((0.5, 1.0, 2.0, 3.0), count(1)):
            observer(record(now, w.Evaluated(version, {"accuracy": now / 4})))
        observer(record(3.5, w.Lost("w1")))
        observer(record(3.6, w.Joined("w1.2")))
        observer(record(3.7, w.Lost("w1.2")))
        observer(record(3.8, w.Joined("w1.3")))
        observer(record(3.9, w.Arrived(w.Facts("w1.3:2", "w1.3", 0, 32))))
        observer(record(4.0, w.Lost("w1.3")))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == [
        "[red]digits",
        "going on from version 0, epoch 0.0, after 0.0 s; 1,000 samples merged or under way since are computed again",
        "       0.5 s   epoch 0.0   version 0   accuracy 0.1250",
        "       3.0 s   epoch 0.0   version 0   accuracy 0.7500",
        f"       3.5 s   {NOBODY}",
        "       3.9 s   workers are here again",
        f"       4.0 s   {NOBODY}",
    ]


def test_a_long_wait_for_the_first_worker_is_told() -> None:
    for now, told in (
        (30.0, []),
        (90.0, ["  1 min 30 s   the first worker is here"]),
        (90_000.0, [" 25 h 00 min   the first worker is here"]),
    ):
        console = Console(file=StringIO(), width=200)
        with shown(console, "digits", Tally(64)) as observer:
            observer(record(0.0, w.Priced("", 1.0)))
            observer(record(now, w.Joined("w1")))
            observer(record(now + 90.0, w.Joined("w2")))
        assert console.file.getvalue().splitlines() == ["digits", *told]  # type: ignore[attr-defined]


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=StringIO(), force_terminal=True, width=80)
    with shown(console, "digits", Tally(64)) as observer:
        observer(record(0.0, w.Joined("w1")))
        observer.stopping()  # type: ignore[attr-defined]
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines == [
        "digits",
        "stopping: the newest version is measured and saved; Ctrl-C again ends at once",
    ]


def test_the_rate_is_not_that_of_the_workers_start(tally: Tally) -> None:
    fresh = Tally(64)
    picture = Picture("", fresh)
    fresh(record(0.0, w.Joined("w1"), w.Start(w.Task("w1:1", "w1", (Span(0, 0, 32),), 0))))
    fresh.advance(5.0)
    picture.draw()
    fresh.advance(10.0)
    picture.draw()
    fresh(record(11.0, w.Arrived(w.Facts("w1:1", "w1", 0, 32)), w.Step({"w1:1": 1.0})))
    assert "   32 samples/s" in text(picture.draw())


def test_a_terminal_is_drawn_on_and_left_clean(tally: Tally) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=80)
    with shown(console, "digits", tally) as observer:
        observer.replay(record(4.0, w.Resumed(5)))  # type: ignore[attr-defined]
        observer(record(5.0, w.Joined("w3")))
    assert tally.workers["w3"].state == "waiting"
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "digits" in drawn
    assert drawn.count("going on from version 1, epoch 0.5, after 4.0 s; 32 samples") == 1


def test_the_summary_leaves_out_what_does_not_apply() -> None:
    figures = Tally().summary() | {
        "ended": "epochs>=3",
        "ended_version": 0,
        "samples_skipped": 0,
        "run_dir": "runs/[red]digits-1",
    }
    figures |= {
        "metrics": {"accuracy": 0.5, "loss": 1.5},
        "loss": 1.5,
        "samples_assigned": 4000,
        "samples_merged": 3000,
        "samples_wasted": 1000,
    }
    local = text(summary("digits", figures, virtual=False))
    assert local.startswith("digits: accuracy 0.5000, loss 1.5000\n")
    assert "4,000 assigned, 3,000 used, 1,000 wasted (25.0 %)" in local
    assert "runs/[red]digits-1: model" in local, "brackets are no markup"
    assert "cost" not in local
    assert "workers" not in local
    simulated = text(summary("digits", figures | {"workers_lost": 2}, virtual=True))
    assert "0.0 s on the fleet's clock" in simulated
    assert "cost     $0" in simulated
    assert "2 lost\n" in simulated
    starts = text(summary("digits", figures | {"workers_lost": 2, "starts_lost": 3}, virtual=True))
    assert "2 lost, 3 lost starting" in starts
    met = {"ended": "accuracy>=0.9", "ended_version": 7, "versions": 9, "wasted": {"lost": 900, "late": 100}}
    met |= {"samples_assigned": 4_100, "samples_skipped": 12, "samples_returned": 80}
    told = " ".join(text(summary("digits", figures | met, virtual=True)).split())
    assert "accuracy>=0.9 at version 7, after 0.0 epochs, 9 versions" in told
    assert "wasted (24.4 %: 900 lost, 100 late), 12 skipped, 80 handed back, 8 under way" in told


@pytest.mark.parametrize(
    ("formatted", "expected"),
    [
        (duration(4.25), "4.2 s"),
        (duration(59.99), "60.0 s"),
        (duration(200), "3 min 20 s"),
        (duration(3 * 3600 + 300), "3 h 05 min"),
        (duration(3.6e300), "1e+297 h"),
        (money(0.0), "$0"),
        (money(0.00412), "$0.0041"),
        (money(1234.5), "$1,234.50"),
        (in_bytes(999), "999 B"),
        (in_bytes(74_044_800), "74 MB"),
        (in_bytes(5e15), "5,000.0 TB"),
    ],
)
def test_numbers_are_written_for_people(formatted: str, expected: str) -> None:
    assert formatted == expected


def test_every_time_that_nobody_is_there_is_told_once() -> None:
    """Machines come, bring something, even too late, and go; lives that bring nothing are not told again."""
    console = Console(file=StringIO(), width=100)
    lines, now = Lines(console, Tally(64), ""), count(1.0)

    def life(number: int, brings: bool, remark: str = "") -> None:
        node = f"w.{number}"
        task = w.Task(f"{node}:1", node, (Span(0, 0, 8),), 0)
        lines(record(next(now), w.Joined(node), w.Start(task)))
        if brings:
            lines(w.Record(next(now), w.Arrived(w.Facts(task.id, node, 0, 8)), (), remark))
        lines(record(next(now), w.Lost(node)))

    for number, (brings, remark) in enumerate([(True, ""), (False, ""), (True, ECHO), (False, "")], 1):
        life(number, brings, remark)
    assert console.file.getvalue().count(NOBODY) == 2  # type: ignore[attr-defined]


def test_a_store_that_has_lost_updates_says_so() -> None:
    assert (
        overwritten({"overwritten": 26, "versions": 48})
        == "26 of 48 merges were written over by another server"
    )
    assert not overwritten({"overwritten": 0, "versions": 48})
    assert not overwritten({"versions": 48}), "an older summary"


def test_many_that_are_gone_are_counted_legibly() -> None:
    assert went(1_234, 0, 5_678) == "1,234 lost, 5,678 lost starting"
    assert went(0, 0, 0) == ""
