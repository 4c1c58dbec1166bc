"""Ctrl-C stops a run cleanly, twice at once, and not at all where it is ignored."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from oddlot import Asynchronous
from oddlot.run_folder import RunFolder
from oddlot.train import checkpoint
from tests.fits import a_job, fleet, one_fork_server, trained
from tests.processes import descendants, ends, program, says
from tests.test_resume import ENDLESS


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    with one_fork_server():
        yield


def test_ctrl_c_stops_cleanly_and_saves(tmp_path: Path) -> None:
    with program("-c", ENDLESS, tmp_path) as process:
        says(process, "saved")
        with ends(descendants(process.pid)):
            process.send_signal(signal.SIGINT)
            _, versions, ended = says(process, "stopped").split()
        assert process.wait() == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert ended == "interrupted"
    assert checkpoint.newest(tmp_path / "checkpoints").version == int(versions)
    assert json.loads((tmp_path / "summary.json").read_text())["ended"] == "interrupted"
    until = f"versions>={int(versions) + 5}"
    run, _ = trained(a_job(), Asynchronous(), fleet(), until, RunFolder(tmp_path), resume=True)
    assert run.summary["versions"] == int(versions) + 5


STUBBORN = """
import signal
import sys

import oddlot
from tests.fits import a_job, local, rows


def measures_forever(outputs, targets):
    print("measuring", flush=True)
    signal.pause()


def watch(record):
    print("working", flush=True)


oddlot.fit(
    a_job(evaluation=rows(), metrics={"endless": measures_forever}), oddlot.Asynchronous(), local(2),
    until="epochs>=1e6", evaluate_every="1000000 epochs", observers=[watch],
)
"""


def test_a_second_ctrl_c_kills_at_once() -> None:
    with program("-c", STUBBORN) as process:
        says(process, "working")
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert "measuring" in process.stderr.readline(), "the final version, and workers print to stderr"
        with ends([process.pid, *descendants(process.pid)]):
            process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT
        assert "KeyboardInterrupt" in process.stderr.read()


def test_where_ctrl_c_is_ignored_it_stays_so(tmp_path: Path) -> None:
    """As in a background job of a shell."""
    ignoring = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    with program("-c", ignoring + ENDLESS, tmp_path) as process:
        says(process, "saved")
        process.send_signal(signal.SIGINT)
        for _ in range(3):
            says(process, "saved")
        assert process.poll() is None
