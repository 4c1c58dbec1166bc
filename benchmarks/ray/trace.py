"""A recorded spot market, replayed at higher speed on a Ray cluster with changing nodes."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import oddlot
from benchmarks.ray.job import Step, job
from benchmarks.ray.nodes import Nodes, cluster
from benchmarks.ray.speed import Driven, driven
from oddlot.core.events import Joined
from oddlot.core.records import Record
from oddlot.core.support.errors import UsageError
from oddlot.history.audit import prove
from oddlot.machines.market_traces import read_alive
from oddlot.workloads.digits import digits

FILE = "spot_bamboo_2020/aws-spot-instances-g4dn-xlarge-us-east-1c-2020-11-20-1930-to-2020-11-21-2200.csv"
BEGIN, FASTER, MOST = 24_300.0, 60.0, 4
"""First second of the trace, replay speed, and maximum number of nodes."""


@dataclass
class Counts:
    """Number of nodes over time."""

    changes: Sequence[tuple[float, int]]
    """Pairs of seconds since the start and the number of nodes after this time."""
    seconds: float


def data() -> Path:
    """Return the folder with the trace. Raises UsageError if it is missing."""
    folder = os.environ.get("ODDLOT_DATA")
    if not folder or not (Path(folder) / FILE).exists():
        raise UsageError(f"$ODDLOT_DATA has no {FILE}.", "no_data", path=FILE)
    return Path(folder)


def counts(data: Path, end: float) -> Counts:
    """Return the number of nodes from `BEGIN` to `end`, in seconds of the trace."""
    steps = read_alive(data / FILE)
    inside = [at for at in steps.seconds if BEGIN < at < end]
    changes = [((at - BEGIN) / FASTER, min(MOST, int(steps.at(at)))) for at in [BEGIN, *inside]]
    return Counts(changes, (end - BEGIN) / FASTER)


class Market:
    """A thread that kills and adds nodes according to the counts. Nodes are lost without notice."""

    def __init__(self, nodes: Nodes, given: Counts) -> None:
        self.nodes, self.given = nodes, given
        self.lost: dict[str, float] = {}
        """Time of each node's loss, by Ray's node id."""
        self._thread = threading.Thread(target=self._run, args=(time.monotonic(),), daemon=True)
        self._thread.start()

    def _run(self, began: float) -> None:
        for at, count in self.given.changes:
            time.sleep(max(0.0, began + at - time.monotonic()))
            while len(self.nodes.alive) > count:
                node = self.nodes.alive[0]
                self.lost[node.node_id] = time.monotonic()
                self.nodes.kill(node)
            while len(self.nodes.alive) < count:
                self.nodes.add(1)

    def close(self) -> None:
        """Wait for the last change."""
        self._thread.join()


class Present:
    """A callback that records when each worker was present."""

    def __init__(self, run: Driven) -> None:
        self.run = run
        self.since: dict[str, tuple[float, str]] = {}
        """Time of joining and Ray's node id, by worker."""
        for node in run.host.conductor.slots:
            self._note(node)
        run.host.observers.append(self)

    def __call__(self, record: Record) -> None:
        """Record a worker that joins."""
        if isinstance(record.event, Joined):
            self._note(record.event.node)

    def _note(self, node: str) -> None:
        worker = self.run.engine.actors.running.get(node)
        if worker is not None and worker.started is not None:
            self.since[node] = time.monotonic(), worker.started.ray_node

    def seconds(self, lost: dict[str, float], begin: float, end: float) -> float:
        """Return the machine-seconds between two times. A machine counts until its node was killed."""
        return sum(
            max(0.0, min(end, lost.get(node, end)) - max(begin, since)) for since, node in self.since.values()
        )


@dataclass
class Outcome:
    """Results of a run."""

    goodput: float
    """Merged updates relative to the speed of the present machines without losses."""
    proved: bool
    kill_noticed: float
    """Seconds from the end of a worker's process to its loss in the log."""
    freeze_noticed: float
    """Seconds from the freeze of a node to the loss of its workers in the log."""


def play(given: Counts, undisturbed_seconds: float) -> Outcome:
    """Replay a trace on a cluster. Then kill a worker, and freeze the node of another worker."""
    first = given.changes[0][1]
    with (
        cluster(first, head_cpus=0, cpus=1) as nodes,
        tempfile.TemporaryDirectory(prefix="ray-benchmark-") as notes,
        driven(job(Step(Path(notes))), oddlot.Ray((first, MOST), in_flight=2), first) as run,
    ):
        rate = run.rate(undisturbed_seconds, first) / first
        present, market = Present(run), Market(nodes, given)
        begin, before = time.monotonic(), run.arrivals
        run.during(given.seconds)
        end, arrived = time.monotonic(), run.arrivals - before
        market.close()
        proof = prove(run.records, len(digits().train_data[1]))
        goodput = arrived / present.seconds(market.lost, begin, end) / rate
        return Outcome(goodput, not proof.faults, killed(run), frozen(run, nodes))


def killed(run: Driven) -> float:
    """Kill a worker. Return the seconds until the hub detects it."""
    run.until(lambda: bool(run.host.conductor.slots))
    node = next(iter(run.host.conductor.slots))
    began = time.monotonic()
    run.engine.faults.kill(node)
    run.until(lambda: node not in run.host.conductor.slots)
    return time.monotonic() - began


def frozen(run: Driven, nodes: Nodes) -> float:
    """Freeze the node of a worker. Return the seconds until the hub detects it."""
    run.until(lambda: bool(run.host.conductor.slots))
    node = next(iter(run.host.conductor.slots))
    place = run.engine.actors.running[node].started.ray_node
    began = time.monotonic()
    nodes.send(next(each for each in nodes.alive if each.node_id == place), signal.SIGSTOP)
    run.until(lambda: node not in run.host.conductor.slots)
    return time.monotonic() - began
