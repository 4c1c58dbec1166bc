"""oddlot compared with Ray Train on one job, without losses and while nodes are lost."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import oddlot
from benchmarks.ray import train_peer
from benchmarks.ray.job import BATCH, EVERY, TARGET, WORKERS, Rate, Step, begun, begun_by_worker, job
from benchmarks.ray.nodes import Nodes, cluster
from oddlot.core.events import Arrived
from oddlot.core.records import Record
from oddlot.history.audit import prove
from oddlot.workloads.digits import digits

CHECKPOINT_SECONDS, JOIN_SECONDS = 10.0, 10.0
"""Seconds between checkpoints, and from the loss of a node to the start of another node."""


@dataclass
class Outcome:
    """Results of a run."""

    seconds: float
    """Seconds from the first step to the end of the last step."""
    steps: int
    """Steps started by all workers."""
    needed: float
    """Steps that the samples need."""
    accuracy: float
    reached: float
    """Seconds from the first step to a version with an accuracy of `TARGET`, or infinity."""
    records: Sequence[Record] = ()
    by_worker: Sequence[Sequence[float]] = ()
    """Start times of each worker's steps, in Unix seconds."""

    @property
    def repeated(self) -> float:
        """Return the number of steps with lost results."""
        return self.steps - self.needed

    @property
    def longest_pause(self) -> float:
        """Return the longest time between two updates, in seconds."""
        arrivals = [record.now for record in self.records if isinstance(record.event, Arrived)]
        return max(after - before for before, after in pairwise(arrivals))


class Losses:
    """A thread that kills a node with a worker at each of `times` after the first step, and later adds another."""

    def __init__(self, nodes: Nodes, notes: Path, times: Sequence[float]) -> None:
        self.nodes, self.notes, self.times = nodes, notes, times
        self.killed: list[float] = []
        """Times of the losses, in Unix seconds."""
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
def fresh() -> Iterator[Nodes]:
    """Yield a cluster with a head for the hub and a node for each worker."""
    with cluster(WORKERS, head_cpus=0, cpus=1) as nodes:
        yield nodes


def ours(
    nodes: Nodes,
    epochs: int,
    seconds: float,
    times: Sequence[float],
    rate: Rate = Rate(),  # noqa: B008 - frozen
    in_flight: int = 1,
) -> Outcome:
    """Train with oddlot, and lose nodes at `times` after the first step, in seconds."""
    with TemporaryDirectory(prefix="ray-benchmark-") as name:
        folder = Path(name)
        (folder / "notes").mkdir()
        with Losses(nodes, folder / "notes", times) as losses:
            run = oddlot.fit(
                job(Step(folder / "notes", seconds), rate),
                oddlot.Asynchronous(),
                oddlot.Ray((1, WORKERS), in_flight=in_flight),
                until=f"epochs>={epochs}",
                out=folder / "run",
                checkpoint_every=f"{CHECKPOINT_SECONDS:g} seconds",
                evaluate_every=f"{EVERY} versions",
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
        accuracy, first = float(run.accuracy or 0.0), merged[0].now - seconds
        reached = (
            min((row["seconds"] for row in run.history if row["accuracy"] >= TARGET), default=inf) - first
        )
        duration, by_worker = steps[-1] + seconds - steps[0], begun_by_worker(folder / "notes")
        return Outcome(duration, len(steps), len(merged), accuracy, reached, records, by_worker)


def theirs(
    nodes: Nodes, epochs: int, seconds: float, times: Sequence[float], elastic: bool, rate: Rate
) -> Outcome:
    """Train with Ray Train, and lose nodes at `times` after the first step, in seconds."""
    samples = epochs * len(digits().train_data[1])
    with TemporaryDirectory(prefix="ray-benchmark-") as name:
        folder = Path(name)
        with Losses(nodes, folder / "notes", times):
            metrics = train_peer.fit(folder, epochs, seconds, elastic, CHECKPOINT_SECONDS, rate)
        steps = begun(folder / "notes")
        found = train_peer.accuracies(folder)
        reached = min((now for now, accuracy in found if accuracy >= TARGET), default=inf) - steps[0]
        duration = steps[-1] + seconds - steps[0]
        by_worker = begun_by_worker(folder / "notes")
        return Outcome(
            duration, len(steps), samples / BATCH, metrics["accuracy"], reached, by_worker=by_worker
        )
