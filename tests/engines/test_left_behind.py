"""Tests of orphaned worker processes: they never write to reused memory, and never outlive the run."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.nn.functional import cross_entropy

import oddlot
from oddlot import Asynchronous
from tests.fits import a_job, local, this_worker
from tests.processes import ends, program, says


def close_socket(path: Path) -> None:
    """Close the worker's socket and continue to run. The hub counts the worker as lost."""
    path.write_text(str(os.getpid()))
    this_worker().hub.close()
    signal.pause()


def daemonize(path: Path) -> None:
    """End the worker, and continue as its child process in a new session."""
    has_id, says = os.pipe()
    if os.fork():
        os.read(has_id, 1)
        os._exit(1)
    os.setsid()
    path.write_text(str(os.getpid()))
    os.write(says, b"1")
    signal.pause()


class Once:
    """A loss that misbehaves in the first task of a run."""

    def __init__(self, act: Any, path: Path) -> None:
        self.act, self.path = act, path

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not self.path.exists():
            self.act(self.path)
        return cross_entropy(outputs, targets)


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("act", [close_socket, daemonize])
def test_lost_worker_ends_before_its_memory_is_reused(act: Any, tmp_path: Path) -> None:
    path, ended = tmp_path / "pid", list[bool]()

    def watch(record: Any) -> None:
        if record.event == oddlot.core.events.Joined("w1.2"):
            ended.append(not Path(f"/proc/{path.read_text()}").exists())

    run = oddlot.fit(
        a_job(loss=Once(act, path)), Asynchronous(), local(1), until="epochs>=2", callbacks=[watch]
    )
    assert ended == [True]
    assert run.summary["workers_lost"] == 1


def start_a_program(path: Path) -> None:
    """Start a program in a new session without waiting for its end."""
    started = subprocess.Popen(["sleep", "600"], start_new_session=True)
    path.write_text(str(started.pid))


RUN = """
from pathlib import Path

import oddlot
from tests.engines.test_left_behind import Once, start_a_program
from tests.fits import a_job, local

path = Path("PATH")
watch = lambda _: path.exists() and path.read_text() and print("started", flush=True)
job = a_job(loss=Once(start_a_program, path))
oddlot.fit(job, oddlot.Asynchronous(), local(1), until="hours>=1", callbacks=[watch])
"""


@pytest.mark.usefixtures("warm_start")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_subprocesses_of_a_worker_end_with_the_run(number: signal.Signals, tmp_path: Path) -> None:
    """Subprocesses end whether the run is stopped or its hub is killed."""
    path = tmp_path / "pid"
    with program("-c", RUN.replace("PATH", str(path))) as process:
        says(process, "started")
        with ends([int(path.read_text())]):
            process.send_signal(number)
