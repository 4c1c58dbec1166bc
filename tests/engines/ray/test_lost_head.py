"""Test of the loss of the cluster's head during training."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from benchmarks.ray.nodes import cluster
from oddlot import Asynchronous, fit
from oddlot.core.events import Joined
from oddlot.core.records import Record
from oddlot.core.support.errors import ClusterLost
from oddlot.engines.ray import private_api
from oddlot.testing.engine_check import Slowly
from tests.engines.ray.scenes import on_ray, slow_job
from tests.transcripts import raises, warns

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


class EndsOnce(Slowly):
    """A slow step that ends one process after the file `when` is created."""

    def __init__(self, when: Path) -> None:
        super().__init__(0.05)
        self.when = when

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        with suppress(FileNotFoundError):  # the file is missing, or the other worker was first
            self.when.unlink()
            os._exit(7)
        return super().__call__(model, batch)


def test_lost_head_ends_the_run_after_a_checkpoint() -> None:
    """Ray ends a process a minute after the loss of its head, so the test has a process of its own."""
    command = [sys.executable, "-m", "pytest", "-m", "ray", f"{__file__}::{in_own_process.__name__}"]
    options = ["-o", f"python_functions={in_own_process.__name__}"]
    run = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


def in_own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_api, "head_timeout", lambda: 20.0)
    with cluster() as nodes:
        gcs = nodes.cluster.head_node.all_processes["gcs_server"][0].process
        assert private_api.head_answers(10.0)
        joined, killed = list[Record](), list[Record]()

        def kill(record: Record) -> None:
            joined.extend([record] if isinstance(record.event, Joined) else [])
            if len(joined) == 2 and not killed:
                os.kill(gcs.pid, signal.SIGKILL)
                gcs.wait()
                assert not private_api.head_answers(0.1)
                killed.append(record)
                (tmp_path / "when").touch()  # no new worker can be registered

        with warns("cluster_head_silent"), raises(ClusterLost, "cluster_lost", lost="head"):
            fit(
                slow_job(training_step=EndsOnce(tmp_path / "when")),
                Asynchronous(),
                on_ray(),
                until="epochs>=1000",
                out=tmp_path / "run",
                callbacks=[kill],
                quiet=True,
            )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    saved = max(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert int(saved.partition("-")[0]) == summary["versions"] >= 10
