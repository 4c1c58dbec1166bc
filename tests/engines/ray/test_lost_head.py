"""A cluster whose head ends while a run trains."""

import json
import os
import signal
from pathlib import Path

import pytest

from benchmarks.ray.nodes import cluster
from oddlot import Asynchronous, fit
from oddlot.core.errors import ClusterLost
from oddlot.core.records import Record
from oddlot.engines.ray import internals
from tests.engines.ray.scenes import on_ray, slow_job
from tests.transcripts import raises, warns

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


def test_a_run_whose_head_ends_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "head_patience", lambda: 20.0)
    with cluster() as nodes:
        gcs = nodes.cluster.head_node.all_processes["gcs_server"][0].process
        assert internals.head_answers(10.0)
        killed: list[Record] = []

        def kill(record: Record) -> None:
            if len(record.actions) and not killed:
                os.kill(gcs.pid, signal.SIGKILL)
                gcs.wait()
                assert not internals.head_answers(0.1)
                killed.append(record)

        with warns("cluster_head_silent"), raises(ClusterLost, "cluster_lost", lost="head"):
            fit(
                slow_job(),
                Asynchronous(),
                on_ray(),
                until="epochs>=1000",
                out=tmp_path / "run",
                observers=[kill],
                quiet=True,
            )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    saved = max(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert int(saved.partition("-")[0]) == summary["versions"] >= 10
