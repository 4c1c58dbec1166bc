"""Computation of a simulated run: `ExactComputation` trains the model, and `NullComputation` computes nothing.

`DataBytes` counts the bytes of sending samples to machines.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

from oddlot.core.tasks import Facts, NodeId, Task, TaskLoss
from oddlot.data.batches import Cuts
from oddlot.engines.payloads import decode_into, most_bytes, users_code
from oddlot.engines.task_runner import TaskRunner
from oddlot.model.block_pool import Pool
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.payload import Payload
from oddlot.train.job import Job
from oddlot.train.learner import Learner, Own
from oddlot.wire.codec import Codec
from oddlot.wire.packet import Packet
from oddlot.wire.plain import Plain


@dataclass(frozen=True)
class DataBytes:
    """Counts the bytes of sending the shard of a task to its machine."""

    cuts: tuple[int, ...] = ()
    """Start of each shard, and end of the last shard. Empty if every machine has all of the data."""
    bytes_per_sample: float = 0.0
    keep: bool = True
    """Whether machines keep their earlier shards."""

    @classmethod
    def of(cls, job: Job, shards: Cuts, keep: bool) -> "DataBytes":
        """Return the counter of a job. Only arrays and data in parts have a known size. Other data count as 0 bytes."""
        batches, size = job.train_batches(), job.sample_order().size
        if isinstance(shards, int):
            cuts = tuple(size * shard // shards for shard in range(shards + 1)) if shards > 1 else ()
        else:
            cuts = shards
        if not cuts:
            return cls()
        first = batches.arrays or (batches.fetch(np.arange(1)) if batches.shards and batches.is_plain else ())
        return cls(cuts, sum(array[:1].nbytes for array in first), keep)

    def missing(self, task: Task, has: set[int]) -> int:
        """Return the bytes for a machine with the shards in `has`. Add the task's shard to `has` if shards are kept."""
        if not self.cuts:
            return 0
        number = bisect_right(self.cuts, task.spans[0].start) - 1
        if number in has:
            return 0
        if self.keep:
            has.add(number)
        return round((self.cuts[number + 1] - self.cuts[number]) * self.bytes_per_sample)


class ExactComputation:
    """Computes the updates of all workers, one task after the other, in this process."""

    def __init__(self, learner: Learner, pool: Pool, codec: Codec) -> None:
        self.pool, self.codec = pool, codec
        self.runner = TaskRunner(learner, None if isinstance(codec, Plain) else codec)
        self.own: dict[NodeId, Own] = {}
        """State of each worker that is kept between tasks."""
        self.bytes_down = learner.weights.layout.bytes
        self.bytes_up = most_bytes(codec, learner.weights.layout)
        """Bytes of the last update, used for the time of the next transfer."""
        self._packet: Packet | None = None

    def compute(self, task: Task, weights: FlatBuffer) -> tuple[TaskLoss, Payload]:
        """Return the task's loss and its update."""
        out = self.pool.take()
        self.runner.learner.own = self.own.setdefault(task.node, Own())
        with users_code(task.node):
            answer = self.runner.run(task, weights, out, self)
        assert isinstance(answer, Facts), "nothing stops a task in the simulator"
        self.bytes_up = answer.bytes_up
        if self._packet is not None:
            decode_into(out, self.codec, self._packet, task.kind, weights)
        return TaskLoss(answer.loss, answer.weight, answer.losses), Payload(
            task.kind, out, lambda: self.pool.give(out)
        )

    def loaded(self, task: Task) -> None:
        """Do nothing: workers have no process."""

    def is_stopped(self, task: Task) -> bool:
        """Return False: a task is computed only after its last sample is known."""
        return False

    def computed(self, task: Task, samples: int | None) -> None:
        """Do nothing: times are simulated."""

    def is_cancelled(self, task: Task) -> bool:
        """Return False: cancelled tasks are not computed."""
        return False

    def deliver(self, packet: Packet) -> int:
        """Keep the packet until it is decoded. Return its size in bytes."""
        self._packet = packet
        return packet.size

    def forget(self, node: NodeId) -> None:
        """Drop the state of a lost worker."""
        self.own.pop(node, None)

    def evaluate(self, weights: FlatBuffer) -> dict[str, float]:
        """Return the metrics of these weights."""
        with users_code("the evaluator"):
            return self.runner.evaluate(weights)


@dataclass
class NullComputation:
    """Computes nothing, for runs that simulate only the time."""

    bytes_down: int = 0
    bytes_up: int = 0

    def compute(self, task: Task, weights: Any) -> tuple[TaskLoss, None]:
        """Return no loss and no payload."""
        return TaskLoss(), None

    def forget(self, node: NodeId) -> None:
        """Do nothing: workers have no state."""

    def evaluate(self, weights: Any) -> dict[str, float]:
        """Return no metrics."""
        return {}
