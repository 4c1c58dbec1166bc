"""What is printed of Ray's own messages, and what is kept in a file."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray._private import worker

from oddlot.engines.ray import internals
from oddlot.engines.ray.ray_messages import RayMessages

RAYLET = "Raylet is terminated. Termination is unexpected. Last 20 lines of the Raylet logs:\n    [state-dump] a\n    b"


def crash_lines() -> list[str]:
    """What Python and Ray print when a process crashes."""
    crash = "import faulthandler, os; faulthandler.enable(); os.abort()"
    python = subprocess.run([sys.executable, "-c", crash], capture_output=True, text=True, check=False).stderr
    return [
        "*** SIGABRT received at time=1795954876 on cpu 0 ***",
        "PC: @     0x7f6ca3e48eec  (unknown)  (unknown)",
        "    @     0x7f6ca3dfa050       9488  (unknown)",
        "[2026-11-29 12:21:16,911 E 9116 9252] logging.cc:474: *** SIGABRT received at time=1795954876 on cpu 0 ***",
        *filter(None, python.splitlines()),
    ]


def test_a_loss_is_one_line_and_its_dump_is_kept(tmp_path: Path) -> None:
    messages, printed = RayMessages(lambda: 0.0), list[str]()
    messages.path = tmp_path / "workers" / "ray.log"
    for given in (
        {"pid": "raylet", "lines": [RAYLET]},
        {"pid": "raylet", "lines": [RAYLET]},  # of another process
        {"pid": 7, "actor_name": "w1", "lines": ["the job's own words", *crash_lines(), "  File of mine"]},
    ):
        printed += messages.rest(given)["lines"]
    more = f"(more in {messages.path})"
    own = ["the job's own words", "  File of mine"]
    assert printed == [f"Raylet is terminated. {more}", *own, f"crashed with SIGABRT {more}"]
    kept = messages.path.read_text()
    assert "[state-dump]" in kept
    assert kept.count("(w1) ") == len(crash_lines())


def test_without_a_run_folder_a_line_is_printed() -> None:
    assert RayMessages().rest({"pid": "raylet", "lines": [RAYLET]})["lines"] == ["Raylet is terminated."]


def test_messages_of_ray_are_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    plain = worker.print_to_stdstream
    end = internals.filter_messages(RayMessages().rest)
    message: dict[str, Any] = {"lines": [RAYLET, f"another {os.getpid()}"], "pid": "raylet", "is_err": False}
    worker.print_to_stdstream(message, ignore_prefix=False)
    end()
    assert capsys.readouterr().out.count("\n") == 2
    assert worker.print_to_stdstream is plain
