"""Ray clusters with several nodes on one machine."""

import os
import signal
import subprocess
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import ray
from ray.cluster_utils import Cluster

from oddlot.engines.ray.cluster import LOOPBACK

HEAD_CPUS = 2
STORE_BYTES = 100_000_000
"""Bytes of a node's object store."""


class Nodes:
    """A cluster with a head that runs the hub."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.added: list[Any] = []
        self.killed: list[Any] = []

    def add(self, cpus: int = 2, resources: Mapping[str, float] | None = None, **environment: str) -> Any:
        """Add a node, optionally with further resources and environment variables."""
        node = self.cluster.add_node(
            num_cpus=cpus,
            resources=dict(resources or {}),
            node_ip_address=LOOPBACK,
            object_store_memory=STORE_BYTES,
            env_vars=environment,
            wait=False,
        )
        self.added.append(node)
        return node

    @property
    def alive(self) -> list[Any]:
        """Return the nodes that were added and not killed, oldest first."""
        return [node for node in self.added if node not in self.killed]

    def kill(self, node: Any) -> None:
        """Kill all processes of a node, like a power failure."""
        self.killed.append(node)
        self.send(node, signal.SIGKILL)

    def send(self, node: Any, number: signal.Signals) -> None:
        """Send a signal to all processes of a node."""
        self.send_to(self.pids(node), number)

    def send_to(self, pids: Iterable[int], number: signal.Signals) -> None:
        """Send a signal to processes."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def pids(self, node: Any) -> list[int]:
        """Return the process ids of a node's raylet and its descendants."""
        return [self.raylet(node), *_descendants(self.raylet(node))]

    def raylet(self, node: Any) -> int:
        """Return the process id of a node's raylet."""
        return int(node.all_processes["raylet"][0].process.pid)


def _descendants(parent: int) -> list[int]:
    """Return the process ids of all descendants of a process."""
    message = subprocess.run(["ps", "-eo", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    families: dict[int, list[int]] = {}
    for pid, above in (map(int, line.split()) for line in message.splitlines()):
        families.setdefault(above, []).append(pid)
    found = list(families.get(parent, ()))
    for pid in found:
        found += families.get(pid, ())
    return found


@contextmanager
def cluster(
    workers: int = 0, head_cpus: int = HEAD_CPUS, cpus: int = 2, store_bytes: int = STORE_BYTES
) -> Iterator[Nodes]:
    """Start a cluster with a head and `workers` further nodes, and connect this process to it."""
    before = signal.getsignal(signal.SIGTERM)
    with (
        TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        warnings.catch_warnings(),
        # Ray writes the address of the current cluster to RAY_TMPDIR. A user's own cluster keeps its address. Ray's
        # default niceness of 15 would let raylets and hubs slow down the workers.
        patch.dict(os.environ, {"RAY_TMPDIR": folder, "RAY_worker_niceness": "0"}),
    ):
        warnings.simplefilter("ignore")  # warnings of Ray
        (Path(folder) / "ray").mkdir()
        head = {"num_cpus": head_cpus, "include_dashboard": False, "node_ip_address": LOOPBACK}
        made = Cluster(
            initialize_head=True,
            shutdown_at_exit=False,  # it needs the main thread, and leaving this context is enough
            head_node_args={**head, "object_store_memory": store_bytes, "temp_dir": folder},
        )
        nodes = Nodes(made)
        try:
            for _ in range(workers):
                nodes.add(cpus)
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
    """Drain a node through Ray, like `ray drain-node` and autoscalers before a preemption."""
    preemption = 2
    client = ray._private.worker.global_worker.gcs_client
    accepted, reason = client.drain_node(node, preemption, "spot", int((time.time() + seconds) * 1000))
    assert accepted, reason
