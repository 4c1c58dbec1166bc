"""Every way in which a node of a Ray cluster can be lost."""

import os
import signal
from collections.abc import Iterator

import pytest

from benchmarks.ray.nodes import Nodes, cluster, drain
from oddlot.core.events import Joined, Leaving
from tests.engines.ray.scenes import LOST_AFTER_SECONDS, on_ray, scene, slow_job

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A cluster for one test, which loses a node of it."""
    with cluster(workers=2) as made:
        yield made


def test_a_node_whose_raylet_is_killed(nodes: Nodes) -> None:
    added = nodes.alive[0]
    with scene(slow_job(0.2), on_ray(3, num_cpus=1)) as run:
        run.until(lambda: len(run.on_node(added.node_id)) > 0 and len(run.host.conductor.slots) == 3)
        lost = run.on_node(added.node_id)
        os.kill(nodes.raylet(added), signal.SIGKILL)
        for node in lost:
            assert run.seconds_until_lost(node) <= LOST_AFTER_SECONDS + 1
            run.until(lambda node=node: run.has(Joined, f"{node}.2"))  # type: ignore[misc]  # elsewhere, at once
        run.finish()


def test_a_frozen_node(nodes: Nodes) -> None:
    added = nodes.alive[0]
    with scene(slow_job(0.2), on_ray(3, num_cpus=1)) as run:
        run.until(lambda: len(run.on_node(added.node_id)) > 0 and len(run.host.conductor.slots) == 3)
        lost = run.on_node(added.node_id)
        nodes.send(added, signal.SIGSTOP)
        for node in lost:
            assert run.seconds_until_lost(node) <= LOST_AFTER_SECONDS + 1
            run.until(lambda node=node: run.has(Joined, f"{node}.2"))  # type: ignore[misc]  # elsewhere, at once
        run.finish()


def test_workers_of_a_drained_node_hand_over_and_leave(nodes: Nodes) -> None:
    added = nodes.alive[0]
    with scene(slow_job(0.2), on_ray(3, num_cpus=1)) as run:
        run.until(lambda: len(run.on_node(added.node_id)) > 0 and len(run.host.conductor.slots) == 3)
        leaving = run.on_node(added.node_id)
        drain(added.node_id, seconds=60)
        for node in leaving:
            run.until(lambda node=node: run.has(Leaving, node))  # type: ignore[misc]
            run.seconds_until_lost(node)
            run.until(lambda node=node: run.has(Joined, f"{node}.2"))  # type: ignore[misc]
        run.finish()
        assert not run.on_node(added.node_id), "a drained node gets no workers"
