"""Artificial delays of a worker, to imitate a machine or as an injected fault, and the control of its tasks."""

import time
from collections.abc import Iterator

from oddlot.core.sample_spans import minibatch_cuts, samples_in
from oddlot.core.sum_tree import minibatch_size
from oddlot.core.support.random_streams import stream
from oddlot.core.tasks import Task, TaskId
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Machine
from oddlot.wire.packet import Packet


class Pace:
    """The pace of a worker. It delays each minibatch until the minibatch has taken as long as on `machine`."""

    def __init__(self, machine: Machine | None, seed: int, batch_size: int) -> None:
        self.machine, self.seed, self.batch_size = machine, seed, batch_size
        self.slowness = 0.0
        """Delay after each step, relative to the step's time."""
        self.done = 0
        """Number of samples of the task that were computed and delayed."""
        self._delay: Times | None = None
        self._seconds_per_sample = 0.0
        self._step_began = 0.0
        self._cuts: Iterator[int] = iter(())
        """Number of samples before each remaining minibatch."""

    def begin(self, task: Task) -> None:
        """Start a task: draw its seconds per sample."""
        self._step_began, self.done = time.perf_counter(), 0
        self._cuts = iter(minibatch_cuts(samples_in(task.spans), minibatch_size(task.kind, self.batch_size)))
        if self.machine:
            self._delay = self._delay or self.machine.delay.start(stream(self.seed, f"delay {task.node}"))
            self._seconds_per_sample = self.machine.seconds_per_sample * self._delay()

    def next_minibatch(self) -> None:
        """Delay the next minibatch until the time of the previous minibatches is over."""
        self.wait(next(self._cuts))

    def wait(self, samples: int) -> None:
        """Wait until the time of the samples since the last call is over.

        Without `slowness`, this is the machine's time or, without a machine, the measured time.
        """
        taken = time.perf_counter() - self._step_began
        lasts = self._seconds_per_sample * (samples - self.done) if self.machine else taken
        if (wait := lasts * (1.0 + self.slowness) - taken) > 0:
            time.sleep(wait)
        self._step_began, self.done = time.perf_counter(), samples


class PacedControl:
    """The `Control` of tasks in a process: it delays them, and stops them on request."""

    pace: Pace

    def __init__(self, pace: Pace | None = None) -> None:
        if pace is not None:
            self.pace = pace
        self.aborted: set[TaskId] = set()
        self.hurried: set[TaskId] = set()
        """Tasks that must end early."""
        self.leaving = False

    def read(self) -> None:
        """Read requests. Do nothing if another thread reads them."""

    def loaded(self, task: Task) -> None:
        """Start the pace of a task."""
        self.pace.begin(task)

    def is_stopped(self, task: Task) -> bool:
        """Return whether to stop before the next minibatch."""
        self.pace.next_minibatch()
        self.read()
        hurried = self.pace.done > 0 and task.id in self.hurried
        return self.leaving or task.id in self.aborted or hurried

    def computed(self, task: Task, samples: int | None) -> None:
        """Wait until the time of the last minibatch is over."""
        self.pace.wait(self.pace.done if samples is None else samples)

    def is_cancelled(self, task: Task) -> bool:
        """Return whether the task was aborted."""
        return task.id in self.aborted

    def deliver(self, packet: Packet) -> int:
        """Raise NotImplementedError: without a codec, there are no packets."""
        raise NotImplementedError
