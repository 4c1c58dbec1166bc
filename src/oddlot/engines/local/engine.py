"""The engine of worker processes on this machine, with sockets for messages and shared memory for tensors."""

import os
import signal
import time
from collections.abc import Collection, Iterable
from typing import Any

from oddlot.core.support.errors import JobError
from oddlot.core.support.serialization import to_plain
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.engines.host import Message
from oddlot.engines.local.block_pool import BlockPool
from oddlot.engines.local.channels import Channels
from oddlot.engines.local.fork_client import ForkClient
from oddlot.engines.local.inject import LocalFaults
from oddlot.engines.local.messages import Say, encode
from oddlot.engines.local.processes import WorkerProcesses
from oddlot.engines.local.replies import EvaluatorProcess, Replies
from oddlot.engines.local.shared_memory import Arena, pack_parcel
from oddlot.engines.local.worker import Setup
from oddlot.engines.processes.node_ids import EVALUATOR, NodeIds
from oddlot.engines.processes.worker_settings import WorkerSettings

CHECK_SECONDS = 0.5
"""Seconds between two checks of the fork server."""
LONGEST_WAIT_SECONDS = 0.5
"""Longest wait, in seconds, so that signals are handled soon."""


class LocalEngine:
    """The mailbox and the port of worker processes.

    There is one process for each worker and, after the first request for an evaluation, one for the evaluator. A worker
    that dies is reported as lost and, with `respawn`, replaced under a new id (`RespawnPolicy`). The clock starts at
    `now` seconds.
    """

    def __init__(
        self,
        fork_server: ForkClient,
        setup: Setup,
        arena: Arena,
        blocks: BlockPool,
        settings: WorkerSettings,
        now: float = 0.0,
        taken: Collection[NodeId] = (),
    ) -> None:
        self.arena, self.blocks, self.parcel = arena, blocks, pack_parcel(setup)
        self._began = time.monotonic() - now
        self._check_at = 0.0
        self.channels = Channels(setup.spin_seconds)
        fds, ids = [arena.fd, self.parcel], NodeIds(settings.names, taken)
        self.processes = WorkerProcesses(
            fork_server, fds, ids, blocks, self.channels, settings.respawn, lambda: self.now
        )
        self.faults = LocalFaults(self.processes)
        self.evaluator = EvaluatorProcess(self.processes)
        self.replies = Replies(self.processes, self.evaluator, settings.dollars_per_hour)
        try:
            for index in range(settings.max_workers):
                self.processes.spawn(index)
        except JobError:
            self.close()
            raise

    # --- the mailbox ---------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self._began

    @property
    def is_spent(self) -> bool:
        """Always False: `next` raises JobError if no message can arrive."""
        return False

    def next(self, until: float) -> Message | None:
        """Return the next message, or None if no message arrives before the time `until`, or for half a second.

        Raise JobError if all workers were lost and none will be replaced.
        """
        messages = self.processes.messages
        if not messages:
            self._look(until)
        if not messages and self._is_deserted:
            message = "all workers were lost, and Local(respawn=False) does not replace them"
            raise JobError(message, "no_workers_left")
        return messages.popleft() if messages else None

    def _look(self, until: float) -> None:
        """Wait for messages and handle them, then do due checks and start due workers."""
        due = min(until, self.processes.policy.next_at, self.processes.evaluations.deadline)
        for hear in self.channels.wait(min(max(due - self.now, 0.0), LONGEST_WAIT_SECONDS)):
            hear()
        if self.now >= self._check_at:
            self._check_at = self.now + CHECK_SECONDS
            self.processes.check()
        for index in self.processes.policy.due(self.now):
            self.processes.spawn(index)
        self.evaluator.check()

    @property
    def _is_deserted(self) -> bool:
        """Whether no worker runs or will start, and no evaluation is pending."""
        workers = self.processes.running.keys() - {EVALUATOR}
        return not (self.processes.policy.replaces or self.processes.evaluations.requested or workers)

    # --- the port ------------------------------------------------------------------------------

    def start(self, task: Task, weights: Any) -> None:
        """Send a task with the numbers of the blocks that it reads and writes."""
        worker = self.processes.running.get(task.node)
        if worker is None:
            return  # it has just died; `Lost` will be reported
        out = worker.tasks[task.id] = self.blocks.take_update(worker.index, weights)
        self.arena.marks[out] = 0
        body = {"task": to_plain(task), "weights": self.blocks.number(weights), "out": out}
        self.channels.send(worker, encode(Say.TASK, **body))

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Ask the worker to stop the task. It reads requests before each minibatch."""
        self._say(node, Say.ABORT, task)

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """Ask the worker to end the task early. It reads requests before each minibatch."""
        self._say(node, Say.HAND_OVER, task)

    def _say(self, node: NodeId, kind: Say, task: TaskId) -> None:
        if worker := self.processes.running.get(node):
            self.channels.send(worker, encode(kind, task=task))

    def evict(self, node: NodeId) -> None:
        """Kill the worker and replace it. This is not a failed start: the ledger counts it against the samples."""
        if worker := self.processes.running.get(node):
            worker.taken_away = True
            self.processes.signal(node, signal.SIGKILL)

    def evaluate(self, version: int, weights: Any) -> None:
        """Request an evaluation from the evaluator, a separate process that is started at the first call."""
        self.evaluator.evaluate(version, self.blocks.number(weights))

    def loaded(self) -> Iterable[TaskId]:
        """Return the tasks that their worker has marked as loaded, in their update block."""
        marks, workers = self.arena.marks, self.processes.running.values()
        return [task for worker in workers for task, block in worker.tasks.items() if marks[block]]

    def close(self) -> None:
        """Close all sockets. Closing the fork server ends the workers."""
        for worker in self.processes.running.values():
            worker.socket.close()
        self.channels.close()
        os.close(self.parcel)
        self.arena.close()
