"""Tests of nodes that join, faults on other machines, and a killed driver."""

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import oddlot
from benchmarks.ray.nodes import Nodes, cluster
from oddlot import Asynchronous
from oddlot.core.events import FaultInjected, Joined, Leaving
from oddlot.engines.ray import actor_pool
from oddlot.faults import Fault
from oddlot.faults.plan import Chaos
from oddlot.history.replay import replay
from tests.engines.ray.scenes import on_ray, scene, slow_job
from tests.processes import program, says
from tests.transcripts import mask, transcribe, warns

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Start a cluster with a head without CPUs."""
    with cluster(head_cpus=0) as made:
        yield made


def test_run_waits_for_minimum_workers_and_accepts_more(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actor_pool, "TELL_SECONDS", 0.5)
    caplog.set_level(logging.INFO)
    with scene(slow_job(0.2), on_ray((2, 3), num_cpus=1)) as run:
        nodes.add(1)
        run.until(lambda: any(worker.ready for worker in run.actors.running.values()))
        run.until(lambda: any("lacks 1 CPU" in message for message in caplog.messages))
        assert not run.records, "one worker is not enough"
        nodes.add(1)
        run.until(lambda: len(run.host.conductor.slots) == 2)
        nodes.add(1)
        run.until(lambda: len(run.host.conductor.slots) == 3)
        run.finish()
    transcribe(next(message for message in caplog.messages if "lacks 1 CPU" in message), ready=r"^\d")


def test_node_without_oddlot_is_left_out(nodes: Nodes, tmp_path: Path) -> None:
    mask(node=r"\bw\d\b")
    (tmp_path / "oddlot.py").write_text("raise ModuleNotFoundError('No module named oddlot', name='oddlot')")
    nodes.add(1)
    with scene(slow_job(0.2), on_ray(2, num_cpus=1)) as run:
        run.until(lambda: len(run.host.conductor.slots) == 1)
        with warns("node_left_out", reason="worker_failed"):
            added = nodes.add(2, PYTHONPATH=str(tmp_path))
            run.until(lambda: bool(run.actors.nodes.left_out))
        assert run.actors.nodes.left_out == {added.node_id}
        nodes.add(1)
        run.until(lambda: len(run.host.conductor.slots) == 2)
        run.finish()


def test_faults_reach_a_worker_on_another_machine(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_pool, "host", lambda: "another machine than the workers'")
    nodes.add(2)
    with scene(slow_job(0.2), on_ray()) as run:
        run.until(lambda: len(run.host.conductor.slots) == 2)
        run.faults.leave("w1")
        run.until(lambda: run.has(Leaving, "w1"))
        run.faults.kill("w2")
        run.until(lambda: run.has(Joined, "w2.2"))
        run.finish()


def test_all_faults_are_injected_and_replayed(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add(2)
    faults = [
        Fault("kill", at_versions=(5,)),
        Fault("freeze", at_versions=(12,), for_seconds=0.3),
        Fault("slow", "w1", at_versions=(8,), factor=1.0, for_seconds=0.5),
        Fault("delay", at_versions=(15,), delay_seconds=0.2),
        Fault("drop", at_versions=(20,)),
        Fault("corrupt", at_versions=(25,)),
        Fault("leave", at_versions=(30,)),
    ]
    run = oddlot.fit(
        slow_job(),
        Asynchronous(),
        on_ray(),
        until="epochs>=2",
        out=tmp_path / "run",
        chaos=Chaos(faults),
        quiet=True,
    )
    assert run.summary["samples_merged"] == 800
    struck = {record.event.kind for record in run.records if isinstance(record.event, FaultInjected)}
    assert struck == {fault.kind for fault in faults}
    assert not replay(tmp_path / "run").difference


PROGRAM = """
import sys, oddlot
from tests.engines.ray.scenes import on_ray, slow_job
run = oddlot.fit(slow_job(), oddlot.Asynchronous(), on_ray(address=sys.argv[1]), until="epochs>=2", out=sys.argv[2],
                 resume="auto", checkpoint_every="10 versions", quiet=True,
                 callbacks=[lambda record: print(type(record.event).__name__, flush=True)])
print("merged", run.summary["samples_merged"])
"""


def test_same_command_resumes_after_the_driver_is_killed(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add(2)
    arguments = ("-c", PROGRAM, nodes.cluster.address, tmp_path / "run")
    with program(*arguments) as driver:
        for _ in range(60):
            says(driver, "Arrived")
        os.kill(driver.pid, signal.SIGKILL)
    with program(*arguments) as driver:
        says(driver, "Resumed")
        assert says(driver, "merged").split() == ["merged", "800"]
