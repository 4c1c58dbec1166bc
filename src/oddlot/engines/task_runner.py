"""Execution of tasks on any engine: load the weights, compute, check for requests to stop, and encode the update."""

import time
from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from oddlot.core.events import Cancelled
from oddlot.core.sample_spans import samples_in
from oddlot.core.tasks import GRADIENT_KINDS, Facts, Task
from oddlot.engines.payloads import encoded
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.train.evaluation import evaluate
from oddlot.train.learner import Learner, Work
from oddlot.wire.codec import Codec
from oddlot.wire.packet import Packet


class Control(Protocol):
    """Callbacks of an engine during a task."""

    def loaded(self, task: Task) -> None:
        """Record that the weights are loaded and the computation starts."""

    def is_stopped(self, task: Task) -> bool:
        """Return whether to stop. Called before each minibatch."""

    def computed(self, task: Task, samples: int | None) -> None:
        """Record the number of computed samples, or None if stopped before the first minibatch."""

    def is_cancelled(self, task: Task) -> bool:
        """Return whether the task was cancelled. No partial update is then sent."""

    def deliver(self, packet: Packet) -> int:
        """Write the packet of the update, and return its size in bytes."""


class TaskRunner:
    """An executor of tasks, one at a time, with a learner.

    With a codec, the update is delivered as a packet. Without a codec, it is the block that the learner has written.
    """

    def __init__(
        self, learner: Learner, codec: Codec | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.learner, self.codec, self.clock = learner, codec, clock

    def run(self, task: Task, weights: FlatBuffer, out: FlatBuffer, control: Control) -> Facts | Cancelled:
        """Compute a task from these weights into `out`, and return the message for the hub."""
        self._import_compiler(task)
        begin = self.clock()
        bytes_down = self.learner.load(task.version, weights)
        control.loaded(task)
        loaded = self.clock()
        work = self.learner.step(weights, task, out, stop=lambda: control.is_stopped(task))
        control.computed(task, work.samples if work else None)
        is_part = work is None or work.samples < samples_in(task.spans)
        if work is None or (is_part and control.is_cancelled(task)):
            return Cancelled(task.id, task.node, bytes_down, work.bytes_data if work else 0)
        computed = self.clock()
        bytes_up = self._send(task, weights, out, control)
        seconds = {
            "down": loaded - begin,
            "load": work.load_seconds,
            "compute": computed - loaded - work.load_seconds,
            "up": self.clock() - computed,
        }
        return _facts(task, work, seconds, bytes_down, bytes_up)

    def evaluate(self, weights: FlatBuffer) -> dict[str, float]:
        """Return the metrics of these weights."""
        return evaluate(self.learner.job, self.learner, weights)

    def _send(self, task: Task, weights: FlatBuffer, out: FlatBuffer, control: Control) -> int:
        if self.codec is None:
            return out.layout.bytes
        return control.deliver(encoded(out, self.codec, task.kind, weights))

    def _import_compiler(self, task: Task) -> None:
        """Import the module that PyTorch's optimizers import at their first use, before the task is timed."""
        job = self.learner.job
        if task.kind not in GRADIENT_KINDS and (job.local_optimizer or job.sparse):
            import_module("torch._dynamo")


def _facts(task: Task, work: Work, seconds: dict[str, float], bytes_down: int, bytes_up: int) -> Facts:
    return Facts(
        id=task.id,
        sender=task.node,
        based_on=task.version,
        samples=work.samples,
        kind=task.kind,
        loss=work.loss,
        weight=None if work.weight == work.samples else work.weight,
        losses=work.losses or None,
        seconds=seconds,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        bytes_data=work.bytes_data,
    )
