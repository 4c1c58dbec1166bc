"""Tests of Ray's own messages: printed lines, and lines in the file."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ray._private import worker

from oddlot.engines.ray import private_api
from oddlot.engines.ray.ray_messages import RayMessages

RAYLET = "Raylet is terminated. Termination is unexpected. Last 20 lines of the Raylet logs:\n    [state-dump] a\n    b"


DIED = (
    "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, "
    "check the logs. Worker IP address: 10.0.0.1 Worker port: 37363 Worker PID: {pid} Worker exit type: SYSTEM_ERROR"
)
CRASH = (
    "*** SIGSEGV received at time=1795958388 on cpu 1 ***",
    "PC: @     0x7f1714185ad8  (unknown)  (unknown)",
    "    @     0x7f171405a050  (unknown)  (unknown)",
    "    @ ... and at least 9 more frames",
    "[2026-11-29 13:19:48,682 E 612 612] logging.cc:474: *** SIGSEGV received at time=1795958388 on cpu 1 ***",
    "Fatal Python error: Segmentation fault",
    "",
    "Stack (most recent call first):",
    '  File "lib/python3.11/ctypes/__init__.py", line 519 in string_at',
    "",
    "Extension modules: msgpack._cmsgpack, google._upb._message, psu",
)
"""Output of a worker that crashes. Ray sends the rest of the last line in another message."""
REST = "til._psutil_linux, yaml._yaml (total: 24)"


def output(pid: int, *lines: str, is_err: bool = True) -> dict[str, Any]:
    return {"ip": "10.0.0.1", "pid": pid, "actor_name": "w1", "is_err": is_err, "lines": lines}


def event(text: str) -> dict[str, Any]:
    return {"pid": "raylet", "is_err": False, "lines": [text]}


def test_loss_is_one_line_and_its_dump_is_saved(tmp_path: Path) -> None:
    messages, own, losses = RayMessages(lambda: 0.0), list[str](), list[str]()
    messages.path = tmp_path / "workers" / "ray.log"
    for given in (
        *(event(RAYLET), event(RAYLET)),  # from two processes
        *(output(7, "the job's own", "", *CRASH), output(7, REST), output(7, "own", is_err=False)),
        event(DIED.format(pid=7)),
        *(output(8, *CRASH), output(8, REST)),  # replaces 7, with the same name
        *(event(DIED.format(pid=9)), event(DIED.format(pid=10))),
    ):
        left, lost = messages.rest(given)
        own += left["lines"]
        losses += lost
    assert own == ["the job's own", "", "own"]
    assert [line.removesuffix(f" (more in {messages.path})") for line in losses] == [
        "Raylet is terminated.",
        *["crashed with SIGSEGV"] * 2,
        *(f"{DIED.partition('. ')[0]}. Process {pid} on 10.0.0.1" for pid in (9, 10)),
    ]
    kept = messages.path.read_text()
    assert "[state-dump]" in kept
    assert kept.count("(w1) ") == 2 * len([*CRASH, REST])


def test_dump_of_a_running_process_ends() -> None:
    dump = [
        "Timeout (0:00:01)!",
        "Thread 0x00007f (most recent call first):",
        '  File "a.py", line 5 in work',
    ]
    left, losses = RayMessages().rest(output(7, *dump, "the job's own"))
    assert (left["lines"], losses) == ([dump[0], "the job's own"], [])


def test_loss_without_a_run_folder_is_printed() -> None:
    assert RayMessages().rest(event(RAYLET))[1] == ["Raylet is terminated."]


@pytest.mark.parametrize("connected", [False, True])
def test_ray_messages_are_filtered(connected: bool, capsys: pytest.CaptureFixture[str]) -> None:
    plain, outputs = worker.print_to_stdstream, worker.global_worker_stdstream_dispatcher
    if connected:  # as in `ray.init`
        outputs.add_handler("ray_print_logs", partial(plain, ignore_prefix=False))
    try:
        end = private_api.filter_messages(RayMessages().rest)
        for pid in range(3):
            message = output(pid, f"own words {time.monotonic_ns()}", *CRASH)
            outputs.emit(message) if connected else worker.print_to_stdstream(message, ignore_prefix=False)
        end()
        assert all(handle.func is plain for _, handle in outputs.handlers)
    finally:
        outputs.remove_handler("ray_print_logs")
    printed = capsys.readouterr().err
    assert printed.count("\n") == printed.count("own words") + printed.count("crashed with SIGSEGV")
    assert printed.count("crashed with SIGSEGV") == 3
    assert worker.print_to_stdstream is plain
