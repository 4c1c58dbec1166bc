"""Ray clusters of several nodes on this machine, which end with the test that has started them."""

import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray.cluster_utils import Cluster

from oddlot.engines.ray.cluster import LOOPBACK
from tests.processes import descendants

HEAD_CPUS = 2
STORE_BYTES = 100_000_000


class Nodes:
    """A cluster whose head has two processors and runs the hub."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster

    def add(self, cpus: int = 2) -> Any:
        """Add a node."""
        return self.cluster.add_node(
            num_cpus=cpus, node_ip_address=LOOPBACK, object_store_memory=STORE_BYTES, wait=False
        )

    @property
    def others(self) -> list[Any]:
        """The nodes besides the head."""
        return [node for node in self.cluster.list_all_nodes() if node is not self.cluster.head_node]

    def kill(self, node: Any) -> None:
        """Kill all processes of a node, as if its machine had been switched off."""
        for pid in self.pids(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def send(self, node: Any, number: signal.Signals) -> None:
        """Send a signal to all processes of a node."""
        for pid in self.pids(node):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def pids(self, node: Any) -> list[int]:
        """The raylet of a node, and the workers below it."""
        pid = self.raylet(node)
        return [pid, *descendants(pid)]

    def raylet(self, node: Any) -> int:
        """The process id of a node's raylet."""
        return int(node.all_processes["raylet"][0].process.pid)


@contextmanager
def cluster(workers: int = 0) -> Iterator[Nodes]:
    """A cluster with a head and some more nodes, to which this process is connected."""
    before = signal.getsignal(signal.SIGTERM)
    with TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        head = {"num_cpus": HEAD_CPUS, "include_dashboard": False, "node_ip_address": LOOPBACK}
        made = Cluster(
            initialize_head=True,
            head_node_args={**head, "object_store_memory": STORE_BYTES, "temp_dir": folder},
        )
        nodes = Nodes(made)
        try:
            for _ in range(workers):
                nodes.add()
            ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
            made.wait_for_nodes()
            yield nodes
        finally:
            ray.shutdown()
            pids = [pid for node in made.list_all_nodes() for pid in nodes.pids(node)]
            made.shutdown()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            signal.signal(signal.SIGTERM, before)
    for path in Path("/dev/shm").glob("plasma*"):
        assert not path.exists()


def drain(node: str, seconds: float) -> None:
    """Have Ray drain a node, as `ray drain-node` and autoscalers do when it is to be preempted."""
    preemption = 2
    client = ray._private.worker.global_worker.gcs_client
    accepted, reason = client.drain_node(node, preemption, "spot", int((time.time() + seconds) * 1000))
    assert accepted, reason
