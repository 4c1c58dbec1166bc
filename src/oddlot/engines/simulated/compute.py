"""What a simulated run computes: the job's real gradients, or nothing but the time that they take."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from oddlot.core.tasks import Facts, NodeId, Task, UpdateId
from oddlot.engines.payloads import decode_into, most_bytes, users_code
from oddlot.engines.task_runner import TaskRunner
from oddlot.train.data import Batches, Cuts
from oddlot.train.flat_buffer import FlatBuffer
from oddlot.train.job import Job
from oddlot.train.learner import Learner, Own
from oddlot.train.store import Payload, Pool
from oddlot.wire.codec import Codec
from oddlot.wire.packet import Packet
from oddlot.wire.plain import Plain


@dataclass(frozen=True)
class DataBytes:
    """What bringing a task's samples to a machine takes: the shard that they lie in."""

    cuts: tuple[int, ...] = ()
    """where each shard begins and the last one ends; empty: every machine has all of the data"""
    bytes_per_sample: float = 0.0
    keep: bool = True
    """a machine keeps the shards that it has had"""

    @classmethod
    def of(cls, job: Job, shards: Cuts, keep: bool) -> "DataBytes":
        """Of arrays, and of data in parts; of other data the size is not known, and counts nothing."""
        batches = Batches(job.train_data, job.collate)
        size = len(batches)
        if isinstance(shards, int):
            cuts = tuple(size * shard // shards for shard in range(shards + 1)) if shards > 1 else ()
        else:
            cuts = shards
        if not cuts:
            return cls()
        first = batches.arrays or (batches.shards.fetch(np.arange(1)) if batches.shards else ())
        return cls(cuts, sum(array[:1].nbytes for array in first), keep)

    def missing(self, task: Task, has: set[int]) -> int:
        """Bytes for a machine that `has` these shards; from now on it has the task's."""
        if not self.cuts:
            return 0
        number = bisect_right(self.cuts, task.spans[0].start) - 1
        if number in has:
            return 0
        if self.keep:
            has.add(number)
        return round((self.cuts[number + 1] - self.cuts[number]) * self.bytes_per_sample)


class Exact:
    """Real gradients, computed one after the other by one learner in this process: the `Control` of its tasks."""

    def __init__(self, learner: Learner, pool: Pool, codec: Codec) -> None:
        self.pool, self.codec = pool, codec
        self.runner = TaskRunner(learner, None if isinstance(codec, Plain) else codec)
        self.own: dict[NodeId, Own] = {}
        """What each node keeps of its own."""
        self.bytes_down = learner.weights.layout.bytes
        self.bytes_up = most_bytes(codec, learner.weights.layout)
        """Of the last update, by which the next one's way is timed."""
        self._packet: Packet | None = None

    def compute(self, task: Task, weights: FlatBuffer) -> tuple[float | None, Payload]:
        """Return the task's mean loss and its update."""
        out = self.pool.take()
        self.runner.learner.own = self.own.setdefault(task.node, Own())
        with users_code(task.node):
            answer = self.runner.run(task, weights, out, self)
        assert isinstance(answer, Facts), "nothing stops a task in the simulator"
        self.bytes_up = answer.bytes_up
        if self._packet is not None:
            decode_into(out, self.codec, self._packet, task.kind, weights)
        return answer.loss, Payload(task.kind, out, lambda: self.pool.give(out))

    def loaded(self, task: Task) -> None:
        """Nothing waits for this."""

    def is_stopped(self, task: Task) -> bool:
        """Never: it is computed once its virtual end is known."""
        return False

    def computed(self, task: Task, samples: int | None) -> None:
        """Nothing waits for this."""

    def is_cancelled(self, task: Task) -> bool:
        """Never."""
        return False

    def deliver(self, packet: Packet) -> int:
        """Keep the packet, to unpack it."""
        self._packet = packet
        return packet.size

    def forget(self, node: NodeId) -> None:
        """Drop what a lost node kept."""
        self.own.pop(node, None)

    def evaluate(self, weights: FlatBuffer) -> dict[str, float]:
        """Return the metrics of these weights."""
        with users_code("the evaluator"):
            return self.runner.evaluate(weights)


@dataclass
class Shadow:
    """The store and the computation of a run that keeps the time and computes nothing: for very large fleets."""

    bytes_down: int = 0
    bytes_up: int = 0
    version: int = 0

    def compute(self, task: Task, weights: None) -> tuple[None, None]:
        """No loss, and nothing."""
        return None, None

    def forget(self, node: NodeId) -> None:
        """It has kept nothing."""

    def evaluate(self, weights: None) -> dict[str, float]:
        """Nothing is known about the model."""
        return {}

    def acquire(self, version: int) -> None:
        """Nothing."""

    def release(self, version: int) -> None:
        """Nothing to let go."""

    def receive(self, facts: Facts, payload: Any) -> None:
        """Always welcome."""

    def step(self, shares: Mapping[UpdateId, float], measure: int = 0, merged: int | None = None) -> None:
        """Nothing moves."""
        self.version += 1

    def blend(self, shares: Mapping[UpdateId, float], measure: int = 0) -> None:
        """Nothing moves."""
        self.version += 1

    def drop(self, update: UpdateId) -> None:
        """Nothing to forget."""
