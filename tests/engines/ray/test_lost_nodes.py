"""Tests of lost, frozen and drained nodes of a Ray cluster."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from benchmarks.ray.nodes import Nodes, cluster, drain
from oddlot.core.events import Arrived, Joined, Leaving
from tests.engines.ray.scenes import LOST_AFTER_SECONDS, on_ray, scene, slow_job

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.fixture
def one_node() -> Iterator[Nodes]:
    """Start a cluster with one node for workers. Its head has no CPU."""
    with cluster(workers=1, head_cpus=0) as made:
        yield made


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """Start a cluster with two more nodes. The test may lose one of them."""
    with cluster(workers=2) as made:
        yield made


def test_workers_of_a_node_with_killed_raylet_are_replaced(nodes: Nodes) -> None:
    added = nodes.alive[0]
    with scene(slow_job(0.2), on_ray(3, num_cpus=1)) as run:
        run.until(lambda: len(run.on_node(added.node_id)) > 0 and len(run.host.conductor.slots) == 3)
        lost = run.on_node(added.node_id)
        os.kill(nodes.raylet(added), signal.SIGKILL)
        for node in lost:
            assert run.seconds_until_lost(node) <= LOST_AFTER_SECONDS + 1
            run.until(lambda node=node: run.has(Joined, f"{node}.2"))  # type: ignore[misc]  # on another node
        run.finish()


def test_workers_of_a_frozen_node_are_replaced(nodes: Nodes) -> None:
    added = nodes.alive[0]
    with scene(slow_job(0.2), on_ray(3, num_cpus=1)) as run:
        run.until(lambda: len(run.on_node(added.node_id)) > 0 and len(run.host.conductor.slots) == 3)
        lost = run.on_node(added.node_id)
        nodes.send(added, signal.SIGSTOP)
        for node in lost:
            assert run.seconds_until_lost(node) <= LOST_AFTER_SECONDS + 1
            run.until(lambda node=node: run.has(Joined, f"{node}.2"))  # type: ignore[misc]  # on another node
        run.finish()


def test_workers_of_a_draining_node_leave_and_are_replaced(nodes: Nodes) -> None:
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


def test_workers_return_after_their_only_node_was_frozen(one_node: Nodes) -> None:
    """Workers that wait for another node start on the frozen node once it responds."""
    (only,) = one_node.alive
    with scene(slow_job(0.2), on_ray(2)) as run:
        run.until(lambda: len(run.host.conductor.slots) == 2)
        one_node.send(only, signal.SIGSTOP)
        run.seconds_until_lost("w1")
        one_node.send(only, signal.SIGCONT)
        run.until(lambda: len(run.host.conductor.slots) == 2)
        run.finish()


def test_busy_hub_detects_a_frozen_worker(one_node: Nodes) -> None:
    with scene(slow_job(0.2), on_ray(2)) as run:
        run.until(lambda: len(run.host.conductor.slots) == 2)
        run.host.observers.append(
            lambda record: time.sleep(1.2) if isinstance(record.event, Arrived) else None
        )
        started = run.actors.running["w2"].started
        assert started is not None
        os.kill(started.pid, signal.SIGSTOP)
        assert run.seconds_until_lost("w2") <= 6 * LOST_AFTER_SECONDS, (
            "twice as long as with a hub that listens, and some more"
        )
