"""oddlot beside Ray Train on one job, undisturbed and while nodes are lost, and how soon losses are noticed."""

import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

import oddlot
from benchmarks.ray import train_peer
from benchmarks.ray.job import BATCH, begun, job
from benchmarks.ray.nodes import Nodes, cluster
from oddlot.core.events import Arrived, Lost
from oddlot.core.records import Record
from oddlot.history.audit import prove
from oddlot.workloads.digits import digits

WORKERS, CHECKPOINT_SECONDS, JOIN_SECONDS = 2, 10.0, 10.0
"""Seconds between checkpoints; between the loss of a node and the start of another one."""
SILENT_SECONDS = 3.0
"""`lost_after_seconds` where a node is frozen."""


@dataclass
class Outcome:
    """What became of a run."""

    seconds: float
    """from the first step to the end of the last one"""
    steps: int
    """begun by all workers"""
    needed: float
    """steps that the samples need"""
    accuracy: float
    records: Sequence[Record] = ()
    lost_after: Sequence[float] = ()
    """Seconds from each loss of a node until the hub knew it"""

    @property
    def repeated(self) -> float:
        """Steps whose results were lost."""
        return self.steps - self.needed

    @property
    def longest_pause(self) -> float:
        """Longest time between two updates, in seconds."""
        arrivals = [record.now for record in self.records if isinstance(record.event, Arrived)]
        return max(after - before for before, after in pairwise(arrivals))


class Losses:
    """Kills a node with a worker at given times after the first step, and starts another one some seconds later."""

    def __init__(self, nodes: Nodes, notes: Path, times: Sequence[float]) -> None:
        self.nodes, self.notes, self.times = nodes, notes, times
        self.killed: list[float] = []
        """Times of the losses, in Unix seconds"""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not (self.notes.exists() and begun(self.notes)):
            if self._ended.wait(0.1):
                return
        began = begun(self.notes)[0]
        events: list[tuple[float, Callable[[], object]]] = [(began + at, self._kill) for at in self.times]
        events += [(began + at + JOIN_SECONDS, lambda: self.nodes.add(1)) for at in self.times]
        for at, act in sorted(events, key=lambda event: event[0]):
            if self._ended.wait(max(0.0, at - time.time())):
                return
            act()

    def _kill(self) -> None:
        node = self.nodes.alive[0]
        self.nodes.kill(node)
        self.killed.append(time.time())


@contextmanager
def fresh() -> Iterator[tuple[Nodes, Path]]:
    """Yield a cluster with a head for the hub and a node for each worker, and a folder."""
    with (
        cluster(WORKERS, head_cpus=0, cpus=1) as nodes,
        tempfile.TemporaryDirectory(prefix="ray-benchmark-") as name,
    ):
        yield nodes, Path(name)


def ours(epochs: int, seconds: float, times: Sequence[float]) -> Outcome:
    """Train with oddlot, and lose nodes at these times after the first step."""
    lost: list[float] = []

    def note(record: Record) -> None:
        if isinstance(record.event, Lost):
            lost.append(time.time())

    with fresh() as (nodes, folder):
        (folder / "notes").mkdir()
        with Losses(nodes, folder / "notes", times) as losses:
            run = oddlot.fit(
                job(folder / "notes", seconds),
                oddlot.Asynchronous(),
                oddlot.Ray((1, WORKERS)),
                until=f"epochs>={epochs}",
                out=folder / "run",
                checkpoint_every=f"{CHECKPOINT_SECONDS:g} seconds",
                evaluate_every=f"{epochs} epochs",
                observers=[note],
                quiet=True,
            )
        steps = begun(folder / "notes")
        records = run.records
        proof = prove(records, len(digits().train_data[1]))
        if proof.faults or not proof.whole:
            raise RuntimeError(f"the log does not prove that each sample was merged once: {proof.faults}")
        if len(losses.killed) < len(times):
            raise RuntimeError("the run ended before all nodes were lost")
        merged = [record for record in records if isinstance(record.event, Arrived)]
        found = [min((at - killed for at in lost if at > killed), default=0.0) for killed in losses.killed]
        accuracy = float(run.accuracy or 0.0)
        return Outcome(steps[-1] + seconds - steps[0], len(steps), len(merged), accuracy, records, found)


def theirs(epochs: int, seconds: float, times: Sequence[float], elastic: bool) -> Outcome:
    """Train with Ray Train, and lose nodes at these times after the first step."""
    samples = epochs * len(digits().train_data[1])
    with fresh() as (nodes, folder), Losses(nodes, folder / "notes", times):
        metrics = train_peer.fit(folder, epochs, seconds, elastic, CHECKPOINT_SECONDS)
        steps = begun(folder / "notes")
        return Outcome(steps[-1] + seconds - steps[0], len(steps), samples / BATCH, metrics["accuracy"])


def seconds_until_noticed(kill: Callable[[Nodes], None], lost_after_seconds: float) -> float:
    """Return the seconds from a fault on a worker's node until the worker counts as lost."""
    struck, updates = list[float](), Counter[str]()
    with fresh() as (nodes, folder):
        (folder / "notes").mkdir()

        def strike(record: Record) -> None:
            if isinstance(record.event, Arrived) and not struck:
                updates[record.event.update.sender] += 1
                if len(updates) == WORKERS and min(updates.values()) >= 3:
                    kill(nodes)
                    struck.append(time.time())
            if isinstance(record.event, Lost):
                struck.append(time.time())
                raise oddlot.StopRun

        oddlot.fit(
            job(folder / "notes", 0.1),
            oddlot.Asynchronous(),
            oddlot.Ray(WORKERS, lost_after_seconds=lost_after_seconds),
            until="epochs>=20",
            evaluate_every="20 epochs",
            observers=[strike],
            quiet=True,
        )
    return struck[1] - struck[0]


def kill_a_worker(nodes: Nodes) -> None:
    """Kill a worker's process, as `kill -9`."""
    for pid in nodes.pids(nodes.alive[0]):
        if b"WorkerActor" in Path(f"/proc/{pid}/cmdline").read_bytes():
            nodes.send_to([pid], signal.SIGKILL)
            return
    raise RuntimeError("the node has no worker")


def freeze_a_node(nodes: Nodes) -> None:
    """Stop all processes of a node, as if its network had failed."""
    nodes.send_to(nodes.pids(nodes.alive[0]), signal.SIGSTOP)
