"""`oddlot watch`, from another process than the run."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from fcntl import LOCK_EX, flock
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.spinner import Spinner

from oddlot import Asynchronous, Machine, Simulated, Synchronous, fit
from oddlot.cli import watch
from oddlot.cli.watch import Watch, watch as watched
from oddlot.core.commands import Start, Step
from oddlot.core.events import Arrived, Cancelled, Joined, Lost, Ticked
from oddlot.core.records import Record
from oddlot.core.sample_spans import Span
from oddlot.core.support.text import moment
from oddlot.core.tasks import Facts, Task
from oddlot.history.metrics import Tally
from oddlot.history.run_folder import RunFolder
from oddlot.report import live_log as follow
from oddlot.report.live_log import KILLED, LiveLog, is_held, waits_for
from oddlot.report.live_view import SECONDS_BETWEEN_LINES
from oddlot.report.progress_line import progress
from tests.command import Oddlot
from tests.fits import a_job, fleet, rows
from tests.processes import children, program, says
from tests.sealed import reseal
from tests.transcripts import transcribe

LIVE = """
import sys

import oddlot
from tests.fits import a_job, local, rows

told = []


def watch(record):
    if not told:
        told.append(print("on", flush=True))


oddlot.fit(
    a_job(eval_data=rows(), metrics={"accuracy": oddlot.accuracy}), oddlot.Synchronous(), local(2),
    until="epochs>=1e6", out=sys.argv[1], callbacks=[watch],
)
"""


def task(name: str, *span: int) -> Start:
    return Start(Task(name, name.partition(":")[0], (Span(0, *span),), 0))


@pytest.fixture
def tally() -> Tally:
    """Return the metrics of a run with two busy workers and one merge per second."""
    tally = Tally(64)
    tally(Record(0.0, Joined("w1"), (task("w1:1", 0, 8),)))
    tally(Record(0.0, Joined("w2"), (task("w2:2", 8, 16),)))
    for number in range(1, 6):
        arrived = Arrived(Facts(f"w1:{number}", "w1", 0, 8))
        more = task(f"w1:{number + 1}", 8 * number + 8, 8 * number + 16)
        tally(Record(float(number), arrived, (Step({f"w1:{number}": 1.0}), more)))
    return tally


def waited_for(message: str) -> list[str]:
    """Return the names of the workers in the text."""
    transcribe(message)
    return re.findall(r"\b[mw]\d\b", message)


def test_watch_reports_a_stall_only_after_ten_merge_intervals(tally: Tally) -> None:
    assert waits_for(tally, 14.9) == "", "ten times what a merge usually takes"
    message = waits_for(tally, 15.1)
    assert waited_for(message) == ["w2", "w1"]
    assert re.findall(r"[\d.]+ s", message) == ["10.1 s", "15.1 s", "10.1 s"]


def test_busy_workers_are_named_in_a_stall(tally: Tally) -> None:
    tally(Record(6.0, Cancelled("w2:2", "w2")))
    assert waited_for(waits_for(tally, 100.0)) == ["w1"]
    tally(Record(6.0, Lost("w1")))
    no_worker_works = waits_for(tally, 100.0)
    tally(Record(7.0, Lost("w2")))
    no_worker_is_here = waits_for(tally, 100.0)
    no_worker_has_come = waits_for(Tally(), 3.0)
    reasons = [no_worker_works, no_worker_is_here, no_worker_has_come]
    assert [waited_for(message) for message in reasons] == [[]] * 3
    assert len({*reasons}) == 3
    assert all(reasons)


def test_growing_log_is_read_incrementally(tmp_path: Path) -> None:
    """The log grows in pieces of any length and across a resume. After it was truncated, it is read from the start."""
    options: dict[str, Any] = {"out": tmp_path / "whole", "checkpoint_every": "2 versions"}
    fit(a_job(), Asynchronous(), fleet(), until="epochs>=1", **options)
    run = fit(a_job(), Asynchronous(), fleet(), until="epochs>=2", resume="latest", **options)
    whole = (tmp_path / "whole" / "records.jsonl").read_bytes()
    (tmp_path / "run").mkdir()
    log = tmp_path / "run" / "records.jsonl"
    shutil.copy(tmp_path / "whole" / "run.json", tmp_path / "run")
    header = whole.index(b"\n") + 1
    log.write_bytes(whole[:header])
    follower, seen = LiveLog(RunFolder(tmp_path / "run")), 0
    for end in [*range(header, len(whole), 777), len(whole)]:
        log.write_bytes(whole[:end])
        seen += len(follower.read())
    assert seen == whole.count(b"\n") - 1
    assert follower.tally.samples.merged == run.summary["samples_merged"] == 96
    log.write_bytes(whole[:header])
    assert follower.read() == []
    assert follower.tally.samples.merged == 0
    tick = b'{"is":"Record","now":9.0,"event":{"is":"Ticked"}}\n'
    log.write_bytes(b"".join(whole.splitlines(keepends=True)[:6]) + tick)
    reseal(log)
    assert follower.read()[-1].event == Ticked()
    log.write_bytes(whole)
    assert len(follower.read()) == seen, "a resumed run has replaced the end"
    assert follower.tally.samples.merged == 96


def test_ended_run_is_reported_at_once(oddlot: Oddlot) -> None:
    run = oddlot.json("simulate", "job.toml", "--machines", "fleet.toml", "--out", "run")
    answer = oddlot("watch", "run")
    assert answer.code == 0
    assert run["ended"] in answer.out
    transcribe(answer.out, trained=r"(?<=loss )[\d.]+")
    Path("run/summary.json").write_text(json.dumps(run | {"ended": "failed: no luck"}))
    answer = oddlot("watch", "run")
    assert (answer.code, answer.out.count("failed: no luck")) == (3, 1)
    oddlot.rejects("no_run", "watch", "nothing", path="nothing")


def test_ended_run_reports_no_stall(tmp_path: Path) -> None:
    """The only machine of the run was busy with its first task all the time."""
    on = Simulated([Machine("m0", 1_000.0)])
    fit(a_job(), Synchronous(), on, until="seconds>=1000", out=tmp_path)
    assert Watch(str(tmp_path)).look() == []
    (tmp_path / "summary.json").unlink()
    with (tmp_path / "lock").open("a") as lock:
        flock(lock, LOCK_EX)
        (line,) = Watch(str(tmp_path)).look()
    assert waited_for(line) == ["m0"]
    assert line.startswith(moment(1000.0))


def test_live_run_is_followed_and_its_stalls_are_reported(
    tmp_path: Path, oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen worker blocks a synchronous round. A stopped and a killed hub are reported too."""
    monkeypatch.setattr(follow, "MIN_STALL_SECONDS", 0.5)
    monkeypatch.setattr(watch, "SECONDS_BETWEEN_LINES", 0.0)
    folder, lines = str(tmp_path / "run"), list[str]()
    with program("-c", LIVE, folder) as process:
        says(process, "on")
        assert is_held(Path(folder))
        seen = Watch(folder)

        def look_until(found: Callable[[], Any]) -> None:
            while not found():
                lines.extend(seen.look())
                time.sleep(0.02)  # leaves CPU time for the run

        look_until(lambda: any("accuracy" in line for line in lines) and not seen.waits)
        workers = [pid for pid, below in children(process.pid).items() if not below]
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        look_until(lambda: seen.waits)
        assert seen.waits in lines[-1]
        assert re.search(r"\bw\d\b", seen.waits)
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        os.kill(process.pid, signal.SIGSTOP)
        look_until(lambda: seen.stopped)
        assert seen.stopped == process.pid
        assert f"kill -CONT {process.pid}" in lines[-1]
        transcribe(seen.waits, pid=str(process.pid))
        os.kill(process.pid, signal.SIGCONT)
        kills = SimpleNamespace(sleep=lambda _: process.kill(), monotonic=time.monotonic)
        monkeypatch.setattr(watch, "time", kills)
        monkeypatch.setattr(follow, "MIN_STALL_SECONDS", 60.0)  # the process was stopped before
        answer = oddlot("watch", folder)
        assert answer.code == 3
        assert "accuracy" in answer.out.splitlines()[1]
        assert answer.out.count(KILLED) == 1


def test_at_most_one_line_every_two_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line has the newest evaluation, even if there are many evaluations."""
    fit(a_job(eval_data=rows()), Synchronous(), fleet(), until="epochs>=40", out=tmp_path)
    header, *lines = (tmp_path / "records.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "summary.json").unlink()
    clock, message, looks = [0.0], list[str](), 100
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(watch, "waits_for", lambda *_: "")
    seen = Watch(str(tmp_path))
    for look in range(looks):
        until = len(lines) * (look + 1) // looks
        (tmp_path / "records.jsonl").write_bytes(header + b"".join(lines[:until]))
        message += seen.look()
        clock[0] += 0.25
    assert len(message) == looks * 0.25 // SECONDS_BETWEEN_LINES + 1
    assert len({*message}) == len(message), "each has a newer evaluation"


def test_watch_waits_for_a_run_to_start(
    tmp_path: Path, oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of such a run is empty or locked. If no run starts in the folder, it is an error."""
    slept = list[float]()

    def begins(seconds: float) -> None:
        slept.append(seconds)
        fit(a_job(), Synchronous(), fleet(), until="epochs>=1", out="run")

    Path("run").mkdir()
    Path("empty").mkdir()
    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=begins, monotonic=time.monotonic))
    answer = oddlot("watch", "run")
    assert (answer.code, len(slept)) == (0, 1), answer.err
    monkeypatch.setattr(watch, "SECONDS_TO_BEGIN", 0.0)
    oddlot.rejects("no_run", "watch", "empty", path="empty")


def test_terminal_shows_metrics_and_workers(tmp_path: Path) -> None:
    fit(a_job(), Synchronous(), fleet(), until="epochs>=1", out=tmp_path)
    console = Console(force_terminal=True, width=80, record=True)
    assert watched(str(tmp_path), console) == "epochs>=1"
    seen = Watch(str(tmp_path))
    seen.look()
    console.print(seen.picture(Spinner("line")))
    message = console.export_text()
    assert all(text in message for text in (seen.title, progress(seen.follower.tally), "m0", "m1"))


def test_watch_waits_between_two_stages(tmp_path: Path) -> None:
    """The summary of a stage exists until the next one starts. After a minute, no next stage will start."""
    for stage, ended in {"first": "", "second": "epochs>=1"}.items():
        about = {"stages": ["first", "second"]}
        fit(a_job(stage=stage), Synchronous(), fleet(1), until="epochs>=1", out=tmp_path / stage, about=about)
        seen = Watch(str(tmp_path / stage))
        assert seen.ended == ended
        seen.heard_at -= watch.SECONDS_TO_BEGIN
        assert seen.ended == "epochs>=1"
