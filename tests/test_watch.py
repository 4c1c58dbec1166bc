"""A run under way, seen from beside it."""

import json
import os
import signal
import subprocess
import sys
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.spinner import Spinner

import oddlot
from oddlot import Asynchronous, Machine, Simulated, Synchronous
from oddlot.core import words as w
from oddlot.core.spans import Span
from oddlot.observe import Tally
from oddlot.report.follow import Follower, is_held, waits_for
from oddlot.run_folder import RunFolder
from oddlot.watch import Watch
from oddlot.watch import watch as watched
from tests.command import Oddlot
from tests.fits import a_job, fleet
from tests.processes import ROOT, children, program, says

LIVE = """
import sys

import oddlot
from tests.fits import a_job, local, rows

told = []


def watch(record):
    if not told:
        told.append(print("on", flush=True))


oddlot.fit(
    a_job(evaluation=rows(), metrics={"accuracy": oddlot.accuracy}), oddlot.Synchronous(), local(2),
    until="epochs>=1e6", out=sys.argv[1], observers=[watch],
)
"""


def task(name: str, *span: int) -> w.Start:
    return w.Start(w.Task(name, name.partition(":")[0], (Span(0, *span),), 0))


@pytest.fixture
def tally() -> Tally:
    """Two workers at work; one merge a second."""
    tally = Tally(64)
    tally(w.Record(0.0, w.Joined("w1"), (task("w1:1", 0, 8),)))
    tally(w.Record(0.0, w.Joined("w2"), (task("w2:2", 8, 16),)))
    for number in range(1, 6):
        arrived = w.Arrived(w.Facts(f"w1:{number}", "w1", 0, 8))
        more = task(f"w1:{number + 1}", 8 * number + 8, 8 * number + 16)
        tally(w.Record(float(number), arrived, (w.Step({f"w1:{number}": 1.0}), more)))
    return tally


def test_nothing_is_said_as_long_as_nothing_is_unusual(tally: Tally) -> None:
    assert waits_for(tally, 14.9, 5.0) == "", "ten times what a merge usually takes"
    assert waits_for(tally, 15.1, 5.0).startswith(
        "no merge for 10.1 s: it waits for w2, at its task for 15.1 s; w1,"
    )


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (w.Cancelled("w2:2", "w2"), "it waits for w1, at its task for"),
        (w.Lost("w1"), "it waits for w2, at its task for"),
    ],
)
def test_whom_it_waits_for(tally: Tally, event: w.Stimulus, told: str) -> None:
    tally(w.Record(6.0, event))
    assert told in waits_for(tally, 100.0, 5.0)
    assert "; " not in waits_for(tally, 100.0, 5.0)


def test_why_it_waits_where_nobody_works(tally: Tally) -> None:
    tally(w.Record(6.0, w.Cancelled("w2:2", "w2")))
    tally(w.Record(6.0, w.Cancelled("w1:6", "w1")))
    assert waits_for(tally, 100.0, 5.0).startswith("all workers wait")
    for node in ("w1", "w2"):
        tally(w.Record(7.0, w.Lost(node)))
    assert waits_for(tally, 100.0, 5.0).startswith("no worker is here")
    assert waits_for(Tally(), 3.0, 0.0).startswith("the workers are starting")


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    """In pieces that end anywhere, through a resume, and from the beginning when it was cut."""
    options: dict[str, Any] = {"out": tmp_path / "whole", "checkpoint_every": "2 versions"}
    oddlot.fit(a_job(), Asynchronous(), fleet(), until="epochs>=1", **options)
    run = oddlot.fit(a_job(), Asynchronous(), fleet(), until="epochs>=2", resume=True, **options)
    whole = (tmp_path / "whole" / "records.jsonl").read_bytes()
    (tmp_path / "run").mkdir()
    log = tmp_path / "run" / "records.jsonl"
    header = whole.index(b"\n") + 1
    log.write_bytes(whole[:header])
    follower, seen = Follower(RunFolder(tmp_path / "run")), 0
    for end in [*range(header, len(whole), 777), len(whole)]:
        log.write_bytes(whole[:end])
        seen += len(follower.read())
    assert seen == whole.count(b"\n") - 1
    assert follower.tally.samples_merged == run.summary["samples_merged"] == 96
    log.write_bytes(whole[:header])
    assert follower.read() == []
    assert follower.tally.samples_merged == 0


def test_a_run_that_has_ended_is_told_at_once(oddlot: Oddlot) -> None:
    oddlot.json("train", "digits", "--until", "epochs>=1", "--workers", "1", "--out", "run")
    answer = oddlot("watch", "run")
    assert answer.code == 0
    assert "digits with synchronous: accuracy 0." in answer.out
    assert "  ended    epochs>=1, after 1.0 epochs" in answer.out
    summary = json.loads(Path("run/summary.json").read_text())
    Path("run/summary.json").write_text(json.dumps(summary | {"ended": "failed: no luck"}))
    answer = oddlot("watch", "run")
    assert (answer.code, answer.out.count("  ended    failed: no luck, after 1.0 epochs")) == (3, 1)
    answer = oddlot("watch", "nothing")
    assert (answer.code, answer.err) == (2, "oddlot: there is no run in nothing\n")


def test_a_run_that_has_ended_waits_for_nobody(tmp_path: Path) -> None:
    """Its only machine was at its first task all the time."""
    on = Simulated([Machine("a", 1_000.0)])
    oddlot.fit(a_job(), Synchronous(), on, until="seconds>=1000", out=tmp_path)
    assert Watch(str(tmp_path)).look() == []
    (tmp_path / "summary.json").unlink()
    with (tmp_path / "lock").open("a") as lock:
        flock(lock, LOCK_EX)
        line = Watch(str(tmp_path)).look()[0]
        assert "it waits for a, at its task for" in line
        assert line.startswith(" 16 min 40 s   ")


def test_a_live_run_is_followed_and_what_it_waits_for_is_said(tmp_path: Path) -> None:
    """A frozen worker holds up a synchronous round; a killed hub is told too."""
    with program("-c", LIVE, tmp_path) as process:
        says(process, "on")
        assert is_held(tmp_path)
        seen = Watch(str(tmp_path))
        lines: list[str] = []
        while not any("accuracy" in line for line in lines):
            lines += seen.look()
        workers = [pid for pid, below in children(process.pid).items() if not below]
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        while not any("it waits for w" in line for line in lines):
            lines += seen.look()
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        os.kill(process.pid, signal.SIGSTOP)
        while not any(f"`kill -CONT {process.pid}` lets it go on" in line for line in lines):
            lines += seen.look()
        os.kill(process.pid, signal.SIGCONT)
        watcher = subprocess.Popen(
            [sys.executable, "-m", "oddlot", "watch", str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert watcher.stdout
        assert any("accuracy" in line for line in watcher.stdout)
        process.kill()
        process.wait()
        out, _ = watcher.communicate()
        assert watcher.returncode == 3
        assert "  ended    nobody is at work on it any more: it was killed" in out


def test_a_terminal_sees_the_figures_and_the_workers(tmp_path: Path) -> None:
    oddlot.fit(a_job(), Synchronous(), fleet(), until="epochs>=1", out=tmp_path)
    console = Console(force_terminal=True, width=80, record=True)
    assert watched(str(tmp_path), console) == "epochs>=1"
    seen = Watch(str(tmp_path))
    seen.look()
    console.print(seen.picture(Spinner("line")))
    told = console.export_text()
    assert "job with synchronous" in told
    assert "epoch 1.0" in told
    assert "m0" in told
