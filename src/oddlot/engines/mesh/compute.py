"""The thread of a peer that computes its tasks and evaluates."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from oddlot.core.errors import JobError, OddlotError
from oddlot.core.events import Cancelled, Evaluated
from oddlot.core.tasks import Task, TaskId
from oddlot.core.user_code import trace_of, user_code_failed
from oddlot.engines.host import Arrival
from oddlot.engines.mesh.patience import EVALUATION, TASK, Patience
from oddlot.engines.pace import Pace
from oddlot.engines.task_runner import TaskRunner
from oddlot.train.flat_buffer import FlatBuffer
from oddlot.train.learner import Learner
from oddlot.train.store import Payload
from oddlot.wire.packet import Packet


class Ready:
    """The message of a computation that can start."""


class ComputeThread:
    """Runs the job's code in one thread, which is also the `Control` of its tasks.

    `found` gets updates, metrics, and the error of a job whose code failed. `report` reports the fields of
    `LifeReader` to the launcher.
    """

    def __init__(
        self,
        make: Callable[[], Learner],
        pace: Pace,
        found: "queue.SimpleQueue[Any]",
        report: Callable[..., None] = lambda **_: None,
    ) -> None:
        self.pace, self.found, self.report = pace, found, report
        self.patience = Patience(time.monotonic())
        self.todo: queue.SimpleQueue[tuple[str, Any, FlatBuffer]] = queue.SimpleQueue()
        self.spare: queue.SimpleQueue[FlatBuffer] = queue.SimpleQueue()
        self.aborted: set[TaskId] = set()
        self.runner: TaskRunner | None = None
        self.thread = threading.Thread(target=self._work, args=(make,), daemon=True)
        self.thread.start()

    def start(self, task: Task, weights: FlatBuffer) -> None:
        """Compute a task."""
        self.todo.put((TASK, task, weights))

    def evaluate(self, version: int, weights: FlatBuffer) -> None:
        """Evaluate weights after the present task."""
        self.todo.put((EVALUATION, version, weights))

    def abort(self, task: TaskId) -> None:
        """Stop a task at its next minibatch."""
        self.aborted.add(task)

    def hung(self, others: Iterable[float]) -> str:
        """Return the work that hangs, by the longest steps of `others`; empty if none does."""
        return self.patience.hung(time.monotonic(), others)

    def _work(self, make: Callable[[], Learner]) -> None:
        try:
            self.runner = TaskRunner(make(), None)
            self.patience.end(time.monotonic())
            self.found.put(Ready())
            while True:
                kind, what, weights = self.todo.get()
                self.patience.begin(kind, time.monotonic())
                if kind == TASK:
                    self._task(what, weights)
                else:
                    self.report(evaluating=True)
                    self.found.put(Evaluated(what, self.runner.evaluate(weights)))
                    self.report(evaluating=False)
                self.patience.end(time.monotonic())
        except OddlotError as error:
            self.found.put(error)
        except BaseException as error:  # noqa: BLE001 - whatever the job's code raises ends the peer
            self.found.put(user_code_failed("a peer", trace_of(error)))

    def _task(self, task: Task, weights: FlatBuffer) -> None:
        assert self.runner is not None
        try:
            out = self.spare.get_nowait()
        except queue.Empty:
            out = FlatBuffer.empty(weights.layout)
        answer = self.runner.run(task, weights, out, self)
        self.aborted.discard(task.id)
        if isinstance(answer, Cancelled):
            self.spare.put(out)
            self.found.put(answer)
            return
        payload = Payload(task.kind, out, lambda: self.spare.put(out))
        self.found.put(Arrival(replace(answer, bytes_up=0, bytes_down=0), payload))  # nothing was sent

    # --- the control of a task -------------------------------------------------------------------

    def loaded(self, task: Task) -> None:
        """Begin the pace of a task."""
        assert self.runner is not None
        self.pace.begin(task, self.runner.learner.job.batch_size)

    def is_stopped(self, task: Task) -> bool:
        """Return whether the task was aborted."""
        self.pace.next_minibatch()
        return task.id in self.aborted

    def computed(self, task: Task, samples: int | None) -> None:
        """Wait until the last minibatch has taken its time."""
        self.pace.wait(self.pace.done if samples is None else samples)

    def is_cancelled(self, task: Task) -> bool:
        """Return whether the task was aborted."""
        return task.id in self.aborted

    def deliver(self, packet: Packet) -> int:
        """Fail: gradients stay with their peer and are never encoded."""
        raise JobError("a peer's gradient is not sent", "not_sent")
