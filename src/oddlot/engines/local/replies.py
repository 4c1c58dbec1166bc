"""Handling of the workers' messages, and the evaluator process."""

import signal
from typing import Any

from oddlot.core.events import Joined, Leaving, UpdateRejected
from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import TaskId
from oddlot.engines.host import ReceivedUpdate
from oddlot.engines.local.channels import WorkerHandle
from oddlot.engines.local.messages import (
    Say,
    encode,
    read_cancelled,
    read_evaluated,
    read_facts,
)
from oddlot.engines.local.processes import WorkerProcesses
from oddlot.engines.processes.node_ids import EVALUATOR
from oddlot.engines.processes.respawn import EVALUATOR_INDEX
from oddlot.engines.processes.user_code_error import failure_of
from oddlot.wire.framing import FrameError


class Replies:
    """Readers that check the workers' messages and convert them to messages for the host."""

    def __init__(
        self, processes: WorkerProcesses, evaluator: "EvaluatorProcess", dollars_per_hour: float
    ) -> None:
        self.processes, self.evaluator = processes, evaluator
        self.dollars_per_hour = dollars_per_hour
        processes.readers = {
            Say.READY: self._ready,
            Say.DONE: self._done,
            Say.CANCELLED: self._cancelled,
            Say.EVALUATED: self._evaluated,
            Say.FAILED: self._failed,
            Say.LEAVING: self._leaving,
            Say.WARNED: self._warned,
        }

    def _ready(self, worker: WorkerHandle, _: dict[str, Any]) -> None:
        if worker.ready:
            raise FrameError("it sent READY twice", "ready_twice")
        self.processes.learn_pid(worker)
        if not self.processes.is_running(worker):
            return  # it ended with its fork server
        worker.ready = True
        if worker.is_evaluator:
            self.evaluator.ask_all()
        else:
            self.processes.messages.append(Joined(worker.node, self.dollars_per_hour))

    def _done(self, worker: WorkerHandle, body: dict[str, Any]) -> None:
        facts = read_facts(body.get("facts"), worker.node)
        block = _end_task(worker, facts.id)
        self.processes.policy.update_came()
        self.processes.server_ends = 0
        worker.productive = True
        try:
            self.processes.messages.append(ReceivedUpdate(facts, self.processes.blocks.payload(facts, block)))
        except FrameError as error:
            self.processes.messages.append(UpdateRejected(facts.id, str(error)))
        self._dismiss(worker)

    def _cancelled(self, worker: WorkerHandle, body: dict[str, Any]) -> None:
        ended = read_cancelled(body, worker.node)
        self.processes.blocks.give_update(_end_task(worker, ended.task))
        self.processes.messages.append(ended)
        self._dismiss(worker)

    def _leaving(self, worker: WorkerHandle, _: dict[str, Any]) -> None:
        if not worker.is_evaluator:  # the evaluator has no machine that is preempted
            worker.leaving = True
            self.processes.messages.append(Leaving(worker.node))
            self._dismiss(worker)

    def _dismiss(self, worker: WorkerHandle) -> None:
        """End a leaving worker once it has sent all updates."""
        if worker.leaving and not worker.tasks:
            self.processes.lose(worker)

    def _evaluated(self, worker: WorkerHandle, body: dict[str, Any]) -> None:
        message = read_evaluated(body)
        if not worker.is_evaluator or message.version not in self.processes.evaluations.requested:
            raise FrameError(
                f"the metrics of version {message.version} were not requested",
                "unrequested_metrics",
                version=message.version,
            )
        self.processes.policy.metrics_came()
        self.processes.evaluations.done(message.version, self.processes.clock())
        self.processes.messages.append(message)

    def _failed(self, worker: WorkerHandle, body: dict[str, Any]) -> None:
        raise failure_of(worker.node, body)

    def _warned(self, _: WorkerHandle, body: dict[str, Any]) -> None:
        """Show a worker's warning as a warning of this process, so that filters apply and notebooks show it."""
        text, code, fields = body.get("text"), body.get("code"), body.get("fields")
        if (
            type(text) is not str
            or type(code) is not str
            or type(fields) is not dict
            or {*fields} & {"text", "code"}
        ):
            raise FrameError("it sent an invalid warning", "invalid_warning")
        warn(text, code, **fields)


class EvaluatorProcess:
    """The evaluator process, started at the first request. It is replaced if it ends or hangs."""

    def __init__(self, processes: WorkerProcesses) -> None:
        self.processes = processes

    def evaluate(self, version: int, block: int) -> None:
        """Evaluate the weights in a block."""
        self.processes.evaluations.requested[version] = block
        if EVALUATOR in self.processes.running:
            self._ask(version)
        else:
            self.processes.spawn(EVALUATOR_INDEX)

    def ask_all(self) -> None:
        """Request all pending evaluations."""
        for version in self.processes.evaluations.requested:
            self._ask(version)

    def check(self) -> None:
        """Kill the evaluator if it hangs."""
        evaluations = self.processes.evaluations
        if self.processes.clock() >= evaluations.deadline and EVALUATOR in self.processes.running:
            evaluations.lost()
            warn("the evaluator does not respond and was killed. Another one takes over", "evaluator_hung")
            self.processes.signal(EVALUATOR, signal.SIGKILL)

    def _ask(self, version: int) -> None:
        worker = self.processes.running[EVALUATOR]
        if worker.ready:
            block = self.processes.evaluations.requested[version]
            self.processes.channels.send(worker, encode(Say.EVALUATE, version=version, weights=block))
            self.processes.evaluations.sent(self.processes.clock())


def _end_task(worker: WorkerHandle, task: TaskId) -> int:
    """Remove a task from its worker. Return the task's update block. Raise FrameError if there is no such task."""
    if task not in worker.tasks:
        raise FrameError(f"it has no task {task!r}", "no_such_task", task=task)
    return worker.tasks.pop(task)
