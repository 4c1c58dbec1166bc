"""However a run ends, nothing is left of it; and it may begin anywhere."""

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import oddlot
from oddlot import Asynchronous, JobError, UsageError
from oddlot.core import words as w
from oddlot.engines.local import LocalEngine
from oddlot.engines.nursery import Nursery
from oddlot.recipe import Recipe, Settings
from oddlot.testing.engines import DrivenRun
from oddlot.training import prepared
from tests.fits import a_job, local, rows
from tests.processes import descendants, ends, program, says


def held() -> dict[str, Any]:
    """What this process has open, below it and mapped."""
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


def interrupts(record: w.Record) -> None:
    if isinstance(record.event, w.Arrived):
        raise KeyboardInterrupt


ENDS: dict[str, tuple[dict[str, Any], dict[str, Any], type[BaseException] | None]] = {
    "done": ({}, {}, None),
    "a mistake in a worker": ({"loss": lambda y, t: 1 / 0}, {}, JobError),
    "a second Ctrl-C": ({}, {"observers": [interrupts]}, KeyboardInterrupt),
    "a job that cannot travel": ({"collate": threading.Lock().acquire}, {}, UsageError),
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left_after_any_end(end: str, tmp_path: Path) -> None:
    changes, options, error = ENDS[end]

    def run() -> None:
        job = a_job(evaluation=rows(), **changes)
        oddlot.fit(job, Asynchronous(), local(2), until="epochs>=2", out=tmp_path / "run", **options)

    before = held()
    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    assert held() == before


def test_a_dead_fork_server_ends_the_run_and_leaves_nobody() -> None:
    with prepared(Recipe(a_job(), Asynchronous(), local(2), Settings(until="epochs>=1000"))) as training:
        run = DrivenRun(training)
        run.deliver(w.Joined(run.joined()))
        assert isinstance(run.engine, LocalEngine)
        server = run.engine.nursery.process.pid
        with ends([server, *descendants(server)]):
            os.kill(server, signal.SIGKILL)
        with pytest.raises(JobError, match="the fork server was killed, and all workers with it; resume"):
            run.finish()


def test_a_fork_server_that_is_dead_before_the_first_worker_is_told() -> None:
    nursery = Nursery()
    os.kill(nursery.process.pid, signal.SIGKILL)
    nursery.process.wait()
    with pytest.raises(JobError, match=r"the fork server was killed$"):
        nursery.fork(0, [])
    nursery.close()


WORKING = """
import oddlot
from torch.nn.functional import cross_entropy
from tests.fits import a_job, local, rows

def loss(outputs, targets):
    return cross_entropy(outputs, targets)

def watch(record):
    if type(record.event).__name__ == "Evaluated":  # every process is there
        print("working", flush=True)

oddlot.fit(a_job(evaluation=rows(), loss=loss), oddlot.Asynchronous(), local(2), until="epochs>=1e6", observers=[watch])
"""


def test_kill_9_of_the_hub_leaves_nobody() -> None:
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
    job = oddlot.Job(Net, Points(), loss, batch=4, device="cpu", evaluation=Points())
    run = oddlot.fit(job, oddlot.Synchronous(), on=oddlot.Local(workers=2), until="epochs>=1")
    print(run.ended, type(run.model).__name__)
"""
IN_A_THREAD = (
    NOTEBOOK + "import threading; thread = threading.Thread(target=main); thread.start(); thread.join()"
)


@pytest.mark.parametrize("way", ["a script, in a thread", "standard input"])
def test_it_works_without_a_main_guard(way: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(NOTEBOOK + IN_A_THREAD)
    text, file = (NOTEBOOK + "main()", "-") if way == "standard input" else ("", script)
    with program(file) as process:
        out, err = process.communicate(text)
    assert out == "epochs>=1 Net\n", err
    assert err.count("from a worker") >= 4, "workers print to stderr"
