"""What a simulated run computes: the job's real gradients, or nothing but the time that they take."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from oddlot.core.errors import OddlotError
from oddlot.core.tasks import Facts, Kind, NodeId, Task, UpdateId
from oddlot.core.user_code import trace_of, user_code_failed
from oddlot.train.data import Batches, Cuts
from oddlot.train.evaluation import evaluate
from oddlot.train.flat_buffer import FlatBuffer, Layout
from oddlot.train.job import Job
from oddlot.train.learner import Learner, Own
from oddlot.train.store import Payload, Pool
from oddlot.wire.codec import Codec, Packet, Plain
from oddlot.wire.framing import FrameError


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
        batches = Batches(job.data, job.collate)
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
    """Real gradients, computed one after the other by one learner in this process."""

    def __init__(self, learner: Learner, pool: Pool, codec: Codec) -> None:
        self.learner, self.pool, self.codec = learner, pool, codec
        self.own: dict[NodeId, Own] = {}
        """what each node keeps of its own"""
        self.bytes_down = learner.weights.layout.bytes
        self.bytes_up = most_bytes(codec, learner.weights.layout)
        """of the last update: before one is computed nobody knows what it takes, and its link is timed by this"""

    def compute(self, task: Task, weights: FlatBuffer) -> tuple[float | None, Payload]:
        """The task's mean loss and its update."""
        self.learner.load(task.version, weights)
        out = self.pool.take()
        self.learner.own = self.own.setdefault(task.node, Own())
        with users_code(task.node):
            work = self.learner.step(weights, task, out)
        assert work is not None, "nothing stops a task in the simulator"
        if not isinstance(self.codec, Plain):
            packet = encoded(out, self.codec, task.kind, weights)
            self.bytes_up = packet.size
            decode_into(out, self.codec, packet, task.kind, weights)
        return work.loss, Payload(task.kind, out, lambda: self.pool.give(out))

    def forget(self, node: NodeId) -> None:
        """The node is gone, and what it kept."""
        self.own.pop(node, None)

    def evaluate(self, weights: FlatBuffer) -> dict[str, float]:
        """The metrics of these weights."""
        with users_code("the evaluator"):
            return evaluate(self.learner.job, self.learner, weights)


@contextmanager
def users_code(where: str) -> Iterator[None]:
    """Turn an exception of the job's own code into a JobError with its traceback."""
    try:
        yield
    except OddlotError:
        raise
    except (Exception, SystemExit) as error:
        raise user_code_failed(where, trace_of(error)) from error


def most_bytes(codec: Codec, layout: Layout) -> int:
    """What a block takes on its way, at most: one without zeros."""
    if isinstance(codec, Plain):
        return layout.bytes
    return codec.encode(FlatBuffer(layout, torch.ones(layout.bytes, dtype=torch.uint8)).sections()).size


def encoded(block: FlatBuffer, codec: Codec, kind: Kind, start: FlatBuffer) -> Packet:
    """The packet of an update that began from `start`. The block may be other afterwards."""
    if kind == "weights" and getattr(codec, "of_changes", False):
        block.toggle_(start)
    return codec.encode(block.sections())


def decode_into(block: FlatBuffer, codec: Codec, packet: Packet, kind: Kind, start: FlatBuffer) -> None:
    """Unpack the packet of an update that began from `start`. FrameError when it holds something else."""
    sections = block.sections()
    tensors = codec.decode(packet)
    if [(name, part.dtype, part.shape) for name, part in tensors] != [
        (n, t.dtype, t.shape) for n, t in sections
    ]:
        told = f"a packet of {packet.size} bytes does not hold the sections of this model"
        raise FrameError(told, "other_sections", bytes=packet.size)
    for (_, target), (_, source) in zip(sections, tensors, strict=True):
        target.copy_(source)
    if kind == "weights" and getattr(codec, "of_changes", False):
        block.toggle_(start)


@dataclass
class Shadow:
    """Store and maths in one that keep the time and skip the maths: for fleets too large to compute."""

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
