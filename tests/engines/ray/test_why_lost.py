"""Tests of the reasons of losses: process, samples or node. They run the hub without a cluster."""

import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
import ray

from oddlot import JobError
from oddlot.engines.ray.handles import CallResult
from oddlot.engines.ray.worker_actor import Failure, note_exits
from oddlot.engines.ray.worker_logs import WorkerLogs
from tests.engines.ray.fake_actors import HUB_NODE, LOST_AFTER_SECONDS, FakeActor, died, world
from tests.transcripts import raises, warns

UNREACHABLE = ray.exceptions.ActorUnavailableError("its connection broke", bytes(16))


def test_lost_nodes_are_no_failed_starts() -> None:
    """A worker is repeatedly lost with its node, each time during its first task."""
    with world() as hub:
        losses = [died("node"), UNREACHABLE, UNREACHABLE, died("node"), UNREACHABLE]
        for number, error in enumerate(losses):
            name = f"w1.{number + 1}" if number else "w1"
            hub.fail(hub.start(name, f"node {number}"), error)
            hub.wait(61)
        assert [lost.cause for lost in hub.lost] == [None] * len(losses)
        assert hub.actors.policy.failed_starts == [0, 0, 0]


def test_silent_node_is_used_again_once_it_replies(caplog: pytest.LogCaptureFixture) -> None:
    """No samples are blamed, and workers that wait for another node start."""
    with world() as hub, warns("node_silent", node="w1", address="far"):
        w1, w2 = hub.start("w1", "far"), hub.start("w2", HUB_NODE)
        hub.silent.add("far")
        hub.wait(LOST_AFTER_SECONDS + 2, w2)
        assert [(lost.node, lost.cause) for lost in hub.lost] == [("w1", None)]
        assert hub.actors.running["w1.2"].actor.avoid == {"far"}
        hub.wait(200, w2)
        assert hub.nodes.avoided == {"far"}, "as long as it does not answer"
        assert not caplog.messages
        hub.silent.clear()
        hub.wait(4, w2)
        assert not hub.nodes.avoided
        assert hub.actors.running["w1.3"].actor.avoid == set()
        assert len(caplog.messages) == 1
        assert not hub.actors.is_running(w1)


def test_node_that_ray_reports_lost_is_forgotten() -> None:
    with world() as hub:
        hub.silent.add("far")
        hub.fail(hub.start("w1", "far"), UNREACHABLE)
        assert hub.nodes.avoided == {"far"}
        hub.wait(4)
        for _, then, *_ in hub.questions:
            then(ray.exceptions.TaskUnschedulableError("the node doesn't exist"))
        assert not hub.nodes.avoided


@pytest.mark.parametrize("where", ["far", HUB_NODE])
def test_silent_worker_on_a_live_node_implicates_samples(where: str) -> None:
    """A silent worker on a live node implicates its samples. Its step may hold Python's GIL, for example."""
    with world() as hub, warns("worker_silent", node="w1"):
        hub.start("w1", where)
        hub.wait(LOST_AFTER_SECONDS + 2)
        assert "lost_after_seconds" in str(hub.lost[0].cause)
        assert not hub.nodes.avoided


def test_node_with_another_live_worker_is_not_lost() -> None:
    with world() as hub, warns("worker_silent", node="w1"):
        hub.start("w1", "far")
        w2 = hub.start("w2", "far")
        hub.silent.add("far")  # the node is too busy to start a process
        hub.wait(LOST_AFTER_SECONDS + 2, w2)
        assert hub.lost[0].cause is not None


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (b"*** SIGSEGV received at time=1 ***", "SIGSEGV"),
        (b"Fatal Python error: Aborted", "SIGABRT"),
        (b"oddlot: os._exit(3)\n", "exit code 3"),
        (b"killed by the system", None),
    ],
)
def test_remote_worker_output_gives_the_cause_of_its_exit(
    output: bytes, cause: str | None, tmp_path: Path
) -> None:
    with world(logs=tmp_path) as hub:
        w1 = hub.start("w1", "far")
        hub.outputs["w1"] = output
        hub.fail(w1, died("worker process"))
        assert not hub.lost, "its output has not come yet"
        hub.reply()
        assert [(lost.node, lost.cause) for lost in hub.lost] == [("w1", cause)]
        assert (tmp_path / "w1.log").read_bytes() == output
        assert not hub.nodes.avoided
        assert hub.actors.policy.failed_starts[0] == (cause is None)


def test_exit_code_is_written_to_the_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    codes, system = list[int](), cast("Any", os)
    monkeypatch.setattr(os, "_exit", codes.append)
    note_exits()
    with pytest.MonkeyPatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        system._exit(4)
    assert not capfd.readouterr().err, "a forked child writes nothing"
    system._exit(3)
    assert WorkerLogs(None).keep("w1", capfd.readouterr().err.encode()) == 3
    assert codes == [4, 3]


def test_node_that_does_not_send_worker_output_is_lost() -> None:
    with world() as hub:
        hub.silent.add("far")
        hub.fail(hub.start("w1", "far"), died("worker process"))
        hub.wait(LOST_AFTER_SECONDS + 2)
        assert [(lost.node, lost.cause) for lost in hub.lost] == [("w1", None)]
        assert hub.nodes.avoided == {"far"}


def cannot_start() -> ray.exceptions.ActorDiedError:
    """Return the error of a node without oddlot."""
    message = "WorkerActor failed to import on the worker.\nModuleNotFoundError: No module named 'oddlot'\n\nAn error"
    return died("worker process", message)


def full() -> ray.exceptions.RayTaskError:
    """Return the error of a node without space for weights or updates."""
    return ray.exceptions.RayTaskError("compute", "...", ray.exceptions.OutOfDiskError())


def no_environment() -> ray.exceptions.RuntimeEnvSetupError:
    """Return the error of a node that cannot unpack the working directory."""
    return ray.exceptions.RuntimeEnvSetupError("Traceback:\nOSError: No space left on device\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (cannot_start(), "worker_failed"),
        (full(), "node_full"),
        (no_environment(), "runtime_env_failed"),
    ],
)
def test_node_that_cannot_run_workers_is_left_out(error: ray.exceptions.RayError, code: str) -> None:
    with world() as hub, warns("node_left_out", node="w1", address="far", reason=code):
        hub.start("w2", HUB_NODE)
        hub.fail(hub.start("w1", "far"), error)
        hub.actors.check()
        assert hub.actors.running["w1.2"].actor.avoid == {"far"}
        assert hub.actors.policy.failed_starts[0] == 0


def test_node_with_another_version_is_left_out() -> None:
    with world() as hub, warns("node_left_out", address="far", reason="version_mismatch"):
        w1 = hub.actors.spawn(0)
        hub.homes["w1"] = "far"
        failure = Failure({"text": "w1 runs PyTorch 1.0", "code": "version_mismatch", "fields": {}}, b"")
        hub.answer(w1, hub.actors._ready, failure)
        assert hub.nodes.avoided == {"far"}


@pytest.mark.parametrize("was_ready", [False, True])
def test_run_with_one_broken_node_ends_unless_it_had_workers(was_ready: bool) -> None:
    with world(cluster=["far"]) as hub:
        if was_ready:
            hub.fail(hub.start("w2", "gone"), died("node"))
        w1 = hub.actors.spawn(0)
        hub.homes["w1"] = "far"
        with warns("node_left_out") if was_ready else raises(JobError, "worker_failed", node="w1"):
            hub.fail(w1, cannot_start())


def test_run_with_one_full_node_ends() -> None:
    """A run with only a full node ends, because waiting would not help."""
    with world(cluster=["far"]) as hub:
        w1 = hub.start("w1", "far")
        with raises(JobError, "node_full", node="w1"):
            hub.fail(w1, full())


def test_node_that_replies_with_an_error_is_not_lost() -> None:
    with world() as hub:
        w1 = hub.start("w1", "far")
        hub.fail(w1, died("node"))
        assert hub.nodes.avoided == {"far"}
        hub.actors.check()
        hub.now += 1.0
        for _, then, *_ in hub.questions:
            then(ray.exceptions.RayTaskError("answer", "...", ImportError("no module oddlot")))
        hub.actors.check()
        assert not hub.nodes.avoided


def test_evaluator_without_memory_restarts_after_a_pause() -> None:
    with world() as hub, warns("worker_out_of_memory"):
        hub.fail(hub.start("evaluator", HUB_NODE), ray.exceptions.OutOfMemoryError("..."))
        hub.reply()
        assert not [one for one in hub.actors.running.values() if one.is_evaluator]
        hub.wait(61)
        assert [one for one in hub.actors.running.values() if one.is_evaluator]


def test_actors_that_do_not_end_are_killed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors of a run that has ended are killed, because a shared cluster would keep them."""
    killed = Counter[str]()
    with world() as hub:
        w1, w2 = hub.start("w1", "far"), hub.start("w2", "far")

        def kill(actor: FakeActor) -> None:
            killed[actor.name] += 1
            if killed[actor.name] == 2 or actor is w1.actor:
                worker = w1 if actor is w1.actor else w2
                hub.actors.news.put(CallResult(worker, None, lambda _: None, died("worker process")))

        monkeypatch.setattr(ray, "kill", kill)
        hub.actors.close()
        assert (killed, hub.actors.not_ended) == ({"w1": 1, "w2": 2}, set())


def test_kills_during_a_lost_head_do_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray.kill` waits for the registration of the actor."""
    over = threading.Event()
    with world() as hub:
        monkeypatch.setattr(ray, "kill", lambda _: over.wait(60))
        w1 = hub.actors.spawn(0)
        hub.fail(w1, died("worker process"))
        assert not hub.actors.is_running(w1)
        hub.actors.kill()
        assert not over.is_set()
        over.set()


def test_failed_runtime_env_ends_the_run_at_start() -> None:
    with world() as hub, raises(JobError, "runtime_env_failed"):
        hub.homes["w1"] = "far"
        hub.fail(hub.actors.spawn(0), no_environment())


def test_run_with_many_broken_nodes_ends() -> None:
    with world(cluster=["1", "2", "3", "4"]) as hub, warns("node_left_out"):
        for number in "12":
            hub.homes["w1"] = hub.homes["w1.2"] = number
            hub.fail(hub.actors.spawn(0), cannot_start())
        hub.homes["w1.3"] = "3"
        with raises(JobError, "worker_failed"):
            hub.fail(hub.actors.spawn(0), cannot_start())


def test_node_without_memory_pauses_and_the_run_waits() -> None:
    """Ray repeatedly kills the worker to free memory, each time during its first task."""
    with world() as hub, warns("worker_out_of_memory"):
        for _ in range(5):
            name = next(iter(hub.actors.running), "w1")
            hub.fail(hub.start(name, "far"), ray.exceptions.OutOfMemoryError("..."))
            hub.reply()
            assert hub.nodes.avoided == {"far"}
            hub.wait(61)
            assert not hub.nodes.avoided
        assert [lost.cause for lost in hub.lost] == 5 * [None]
