"""Tests that every end of a run releases its resources, and that runs start from threads and standard input."""

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import Asynchronous, JobError, UsageError
from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.engines.local import config as on_local, processes
from oddlot.engines.local.engine import LocalEngine
from oddlot.engines.local.fork_client import ForkClient
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.run.training import prepared
from oddlot.testing.engine_check import DrivenRun
from tests.fits import a_job, local, rows
from tests.processes import descendants, ends, program, says
from tests.transcripts import mask, raises, warns

pytestmark = pytest.mark.usefixtures("warm_start")


def held() -> dict[str, Any]:
    """Return the open files, descendants, mappings and threads of this process."""
    gc.collect()
    files = Path("/proc/self/fd").iterdir()
    open_files = sorted(str(file.readlink()) for file in files if file.is_symlink())
    maps = Path("/proc/self/maps").read_text()
    threads = sorted(thread.name for thread in threading.enumerate())
    return {
        "files": open_files,
        "below": descendants(os.getpid()),
        "maps": maps.count("oddlot"),
        "threads": threads,
    }


def interrupts(record: Record) -> None:
    if isinstance(record.event, Arrived):
        raise KeyboardInterrupt


ENDS: dict[str, tuple[dict[str, Any], dict[str, Any], type[BaseException], str]] = {
    "a mistake in a worker": ({"loss": lambda y, t: 1 / 0}, {}, JobError, "user_code_failed"),
    "a second Ctrl-C": ({}, {"callbacks": [interrupts]}, KeyboardInterrupt, ""),
    "a job that cannot travel": ({"collate": threading.Lock().acquire}, {}, UsageError, "cannot_be_pickled"),
}


def runs(folder: Path, changes: dict[str, Any], options: dict[str, Any]) -> None:
    job = a_job(eval_data=rows(), **changes)
    oddlot.fit(job, Asynchronous(), local(2), until="epochs>=2", out=folder / "run", **options)


def test_finished_run_leaves_nothing_behind(tmp_path: Path) -> None:
    before = held()
    runs(tmp_path, {}, {})
    assert held() == before


@pytest.fixture(scope="module")
def server() -> Iterator[ForkClient]:
    """Yield a fork server for several runs, because its start is slow."""
    fork_server = ForkClient()
    yield fork_server
    fork_server.close()


@pytest.mark.parametrize("end", ENDS)
def test_failed_run_leaves_nothing_behind(
    end: str, server: ForkClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers end when their sockets are closed. The fork server is not closed here, so it does not end them."""
    closed, (changes, options, error, code) = list[None](), ENDS[end]
    mask(node=r"w\d with train_data\[[\d, ]+\]")
    monkeypatch.setattr(on_local, "ForkClient", lambda: server)
    monkeypatch.setattr(server, "close", lambda: closed.append(None))
    before = held()
    with raises(error, code):
        runs(tmp_path, changes, options)
    assert closed == [None]
    until = time.monotonic() + 30
    while held() != before and time.monotonic() < until:
        time.sleep(0.01)
    assert held() == before


def test_killed_fork_server_is_replaced_with_its_workers() -> None:
    """A fork server is replaced twice. The third kill in a row without an update fails the run."""
    settings = RunConfig(until="epochs>=1000000")
    with prepared(Recipe(a_job(), Asynchronous(), local(2), settings)) as training:
        run = DrivenRun(training)
        assert isinstance(run.engine, LocalEngine)
        run.until(lambda: run.answers("w1", echo=False) > 0)
        server = run.engine.processes.fork_server.process.pid
        with ends([server, *descendants(server)]):
            os.kill(server, signal.SIGKILL)
        with warns("fork_server_restarted"):
            run.until(lambda: run.answers("w1.2", echo=False) > 0)
        with warns("fork_server_restarted"), raises(JobError, "fork_server_killed"):
            while True:
                os.kill(run.engine.processes.fork_server.process.pid, signal.SIGKILL)
                ended = run.engine.processes.server_ends
                while run.engine.processes.server_ends == ended:
                    run.engine.next(run.engine.now + 1)  # no host receives the messages


def test_frozen_fork_server_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STOPPED_SECONDS", 0.5)
    with prepared(Recipe(a_job(), Asynchronous(), local(1), RunConfig(until="epochs>=1000000"))) as training:
        run = DrivenRun(training)
        assert isinstance(run.engine, LocalEngine)
        run.until(lambda: run.answers("w1", echo=False) > 0)
        run.engine.processes.fork_server.process.send_signal(signal.SIGSTOP)
        run.faults.kill("w1")
        run.until(lambda: run.answers("w1.2", echo=False) > 0)


def test_fork_server_dead_at_start_raises() -> None:
    fork_server = ForkClient()
    os.kill(fork_server.process.pid, signal.SIGKILL)
    fork_server.process.wait()
    with raises(JobError, "fork_server_ended", exit_code=-signal.SIGKILL):
        fork_server.fork(0, [])
    fork_server.close()


WORKING = """
import oddlot
from torch.nn.functional import cross_entropy
from tests.fits import a_job, local, rows

def loss(outputs, targets):
    return cross_entropy(outputs, targets)

def watch(record):
    if type(record.event).__name__ == "Evaluated":  # every process is there
        print("working", flush=True)

oddlot.fit(a_job(eval_data=rows(), loss=loss), oddlot.Asynchronous(), local(2), until="epochs>=1e6", callbacks=[watch])
"""


def test_killed_hub_leaves_no_processes() -> None:
    with program("-c", WORKING) as process:
        says(process, "working")
        below = descendants(process.pid)
        assert len(below) == 4, "a fork server, two workers, an evaluator"
        with ends(below):
            process.kill()


NOTEBOOK = """
import torch
import oddlot

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        print("from a worker")
        return self.linear(x)

class Points:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.ones(2) * index, index % 2

def loss(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets)

def main():
    job = oddlot.Job(Net, Points(), loss, batch_size=4, device="cpu", eval_data=Points())
    run = oddlot.fit(job, oddlot.Synchronous(), engine=oddlot.Local(workers=2), until="epochs>=1")
    print(run.ended, type(run.model).__name__)
"""
IN_A_THREAD = "import threading; thread = threading.Thread(target=main); thread.start(); thread.join()"


def test_fit_works_from_stdin_and_a_thread_without_main_guard() -> None:
    with program("-") as process:
        out, err = process.communicate(NOTEBOOK + IN_A_THREAD)
    assert out == "epochs>=1 Net\n", err
    assert err.count("from a worker") >= 4, "workers print to stderr"
