"""Tests that Ray's private interface works as the engine expects."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from benchmarks.ray.nodes import Nodes, cluster, drain
from oddlot.engines.ray import private_api

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster(workers=1) as made:
        yield made


def answer_of(call: Any) -> Any:
    """Return the value that `on_completed` passes on."""
    answers: SimpleQueue[Any] = SimpleQueue()
    private_api.on_completed(call, answers.put)
    return answers.get(timeout=30)


@ray.remote(max_restarts=0)
class Mortal:
    """An actor that ends, or waits for the end of its node."""

    def end(self) -> None:
        """End the process."""
        os._exit(3)

    def wait(self) -> None:
        """Wait for a minute."""
        time.sleep(60)


@ray.remote
def an_array() -> Any:
    """Return an array that is too large for a message."""
    return np.arange(1_000_000)


@ray.remote(max_retries=0)
def broken() -> None:
    """Raise ArithmeticError."""
    raise ArithmeticError("my own mistake")


@ray.remote
def a_minute() -> None:
    """Keep a node busy."""
    time.sleep(60)


@ray.remote
def files() -> list[str]:
    """Return the files with this process's output."""
    return private_api.output_files()


@pytest.mark.usefixtures("nodes")
def test_ready_result_shares_the_object_store_memory() -> None:
    call = an_array.remote()
    array = answer_of(call)
    again = ray.get(call, timeout=30)
    assert np.array_equal(array, np.arange(1_000_000))
    assert array.ctypes.data == again.ctypes.data
    assert not array.flags.writeable


@pytest.mark.usefixtures("nodes")
def test_exception_is_returned_as_the_result() -> None:
    answer = answer_of(broken.remote())
    assert isinstance(answer, ray.exceptions.RayTaskError)
    assert "my own mistake" in str(answer)


@pytest.mark.usefixtures("nodes")
def test_process_lists_its_output_files() -> None:
    paths = answer_of(files.remote())
    assert paths
    assert all(Path(path).exists() for path in paths)


def test_draining_nodes_are_listed(nodes: Nodes) -> None:
    (added,) = nodes.alive
    assert not private_api.draining_nodes()
    there = NodeAffinitySchedulingStrategy(added.node_id, soft=False)
    busy = a_minute.options(scheduling_strategy=there).remote()  # an idle node ends immediately
    answer_of(files.options(scheduling_strategy=there).remote())
    end = time.time() + 60
    drain(added.node_id, seconds=60)
    assert private_api.draining_nodes()[added.node_id] == pytest.approx(end, abs=2)
    ray.cancel(busy, force=True)


def test_ended_part_is_process_unknown_or_node(nodes: Nodes) -> None:
    added = nodes.add()
    there = Mortal.options(scheduling_strategy=NodeAffinitySchedulingStrategy(added.node_id, soft=False))  # type: ignore[attr-defined]
    assert private_api.ended_part(answer_of(there.remote().end.remote())) == "process"
    actor = there.remote()
    ray.get(actor.__ray_ready__.remote(), timeout=60)
    call = actor.wait.remote()
    nodes.kill(added)
    assert private_api.ended_part(answer_of(call)) == "unknown", "its connection broke"
    while (part := private_api.ended_part(answer_of(actor.wait.remote()))) == "unknown":
        pass
    assert part == "node", "Ray has noticed the loss"


@pytest.mark.parametrize("mode", ["token", "disabled"])
def test_token_mode_is_detected(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(private_api.TOKEN_MODE, mode)
    ray._raylet.Config.initialize("")  # as Ray does when it has changed the mode
    assert private_api.uses_tokens() == (mode == "token")


@pytest.mark.usefixtures("nodes")
def test_own_cluster_and_head_are_detected() -> None:
    assert not private_api.is_head()
    shown = (
        "import ray; from oddlot.engines.ray import cluster, private_api; from contextlib import ExitStack\n"
    )
    shown += "with ExitStack() as closing: print(cluster.connect('local', None, closing).is_own, private_api.is_head())"
    message = subprocess.run([sys.executable, "-c", shown], check=True, capture_output=True, text=True).stdout
    assert message.split() == ["True", "True"]


def test_ray_note_names_the_running_cluster(nodes: Nodes) -> None:
    assert private_api.noted_cluster() == nodes.cluster.address
    shown = "from oddlot.engines.ray.head_probe import check_head; import sys; check_head(sys.argv[1], is_noted=True)"
    # In a separate process, because a client during a connection would disturb a later cluster.
    subprocess.run([sys.executable, "-c", shown, nodes.cluster.address], check=True)


@pytest.mark.usefixtures("nodes")
def test_raylet_connection_stays_silent() -> None:
    with private_api.raylet_link() as link:
        assert not select.select([link], [], [], 0.1)[0]
