"""Artificial slowness of a worker: of a simulated machine, or of an injected fault."""

import time
from collections.abc import Iterator

from oddlot.core.sample_spans import minibatch_cuts, samples_in
from oddlot.core.support.random_streams import stream
from oddlot.core.tasks import Task, TaskId
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Machine
from oddlot.wire.packet import Packet


class Pace:
    """Makes a worker wait after each minibatch, until it has taken as long as its `machine` would."""

    def __init__(self, machine: Machine | None, seed: int, batch_size: int) -> None:
        self.machine, self.seed, self.batch_size = machine, seed, batch_size
        self.slowness = 0.0
        """Factor of a step's own time to wait after it."""
        self.done = 0
        """Samples of the task that have taken their time."""
        self._delay: Times | None = None
        self._seconds_per_sample = 0.0
        self._step_began = 0.0
        self._cuts: Iterator[int] = iter(())
        """Samples before each of the minibatches that are to come."""

    def begin(self, task: Task) -> None:
        """Begin a task: draw what a sample of it takes."""
        self._step_began, self.done = time.perf_counter(), 0
        self._cuts = iter(minibatch_cuts(samples_in(task.spans), self.batch_size))
        if self.machine:
            self._delay = self._delay or self.machine.delay.start(stream(self.seed, f"delay {task.node}"))
            self._seconds_per_sample = self.machine.seconds_per_sample * self._delay()

    def next_minibatch(self) -> None:
        """Wait until the minibatches before the next one have taken their time."""
        self.wait(next(self._cuts))

    def wait(self, samples: int) -> None:
        """Wait until the samples since the last call have taken their time, which is longer by the slowness: the
        machine's time, or else what the step took itself."""
        taken = time.perf_counter() - self._step_began
        lasts = self._seconds_per_sample * (samples - self.done) if self.machine else taken
        if (wait := lasts * (1.0 + self.slowness) - taken) > 0:
            time.sleep(wait)
        self._step_began, self.done = time.perf_counter(), samples


class PacedControl:
    """The `Control` of tasks in a process: their pace, and requests to end them."""

    pace: Pace

    def __init__(self, pace: Pace | None = None) -> None:
        if pace is not None:
            self.pace = pace
        self.aborted: set[TaskId] = set()
        self.hurried: set[TaskId] = set()
        """Tasks that must end early."""
        self.leaving = False

    def read(self) -> None:
        """Read requests, unless another thread does that."""

    def loaded(self, task: Task) -> None:
        """Begin the pace of a task."""
        self.pace.begin(task)

    def is_stopped(self, task: Task) -> bool:
        """Return whether to stop before the next minibatch."""
        self.pace.next_minibatch()
        self.read()
        hurried = self.pace.done > 0 and task.id in self.hurried
        return self.leaving or task.id in self.aborted or hurried

    def computed(self, task: Task, samples: int | None) -> None:
        """Wait until the last minibatch has taken its time."""
        self.pace.wait(self.pace.done if samples is None else samples)

    def is_cancelled(self, task: Task) -> bool:
        """Return whether the task was aborted."""
        return task.id in self.aborted

    def deliver(self, packet: Packet) -> int:
        """Fail: without a codec, updates are no packets."""
        raise NotImplementedError
