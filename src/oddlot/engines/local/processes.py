"""The worker processes of a run: started, ended and replaced."""

import os
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from oddlot.core.errors import JobError
from oddlot.core.events import Lost
from oddlot.core.tasks import NodeId
from oddlot.core.user_warnings import warn
from oddlot.engines.evaluations import Evaluations
from oddlot.engines.host import Message
from oddlot.engines.local.block_pool import Blocks
from oddlot.engines.local.channels import Channels, Hear
from oddlot.engines.local.fork_client import ForkServer, ServerEnded
from oddlot.engines.local.messages import Say
from oddlot.engines.local.orphans import kill_group, wait_until_gone
from oddlot.engines.local.worker_handle import WorkerHandle
from oddlot.engines.node_ids import EVALUATOR, NodeIds
from oddlot.engines.respawn import DEATHS_BEFORE_GIVING_UP, EVALUATOR_INDEX, RespawnPolicy, log_exit

STOPPED_SECONDS, SILENT_SECONDS = 30.0, 300.0
"""Until a fork server that does not answer is continued, and killed. It imports PyTorch first."""
START_SECONDS = 600.0
"""Until a worker that is not ready counts as hung."""
END_SECONDS, RETRY_SECONDS = 10.0, 5.0
"""For workers to end with their fork server; before a process that the system refused is requested again."""


@dataclass
class HubState:
    """State shared by the parts of the local engine."""

    blocks: Blocks
    channels: Channels
    policy: RespawnPolicy
    clock: Callable[[], float]
    """Seconds since the run began."""
    evaluations: Evaluations = field(default_factory=Evaluations)
    messages: deque[Message] = field(default_factory=deque)
    """For the host."""


class WorkerProcesses:
    """Starts workers by the fork server, and handles their exits.

    `fds` are the files that each worker gets: shared memory and the job. `hear(worker)` reads all messages of a
    worker. A worker's blocks are used again only once its process has ended: until then it might write into them.
    """

    def __init__(
        self, fork_server: ForkServer, fds: list[int], ids: NodeIds, state: HubState, hear: Hear
    ) -> None:
        self.fork_server, self.fds, self.ids, self.state, self.hear = fork_server, fds, ids, state, hear
        self.running: dict[NodeId, WorkerHandle] = {}
        """Workers, and the evaluator, that are heard."""
        self.ending: list[WorkerHandle] = []
        """Lost ones whose process has not ended yet, as far as is known."""
        self.server_ends = self.refused_forks = 0
        """In a row, without an update or a fork between."""
        state.channels.add(fork_server.socket, self.hear_server)

    def spawn(self, index: int) -> None:
        """Start a worker, or the evaluator."""
        node = self.ids.next(index)
        try:
            number, ours = self.fork_server.fork(max(index, 0), self.fds)
        except ServerEnded as ended:
            self._restart_server(ended)
            number, ours = self.fork_server.fork(max(index, 0), self.fds)
        worker = self.running[node] = WorkerHandle(
            node, index, self.state.clock(), number=number, socket=ours
        )
        self.state.channels.add_worker(worker, self.hear)

    def is_running(self, worker: WorkerHandle) -> bool:
        """Whether messages of the worker are still read."""
        return self.running.get(worker.node) is worker

    def signal(self, node: NodeId, number: signal.Signals) -> None:
        """Send a signal to a worker that is there."""
        worker = self.running.get(node)
        if worker is not None and worker.pid:
            with suppress(ProcessLookupError):  # it has ended, which will be reported
                os.kill(worker.pid, number)

    def bar(self, index: int, barred: bool) -> None:
        """Set whether the worker stays away once it has ended."""
        for worker in (*self.running.values(), *self.ending):
            worker.taken_away = worker.taken_away or (barred and worker.index == index)
        self.state.policy.bar(index, barred, self.state.clock())

    def lose(self, worker: WorkerHandle) -> None:
        """Hear a worker no more, and kill its process: it may have closed its socket only."""
        if not self.is_running(worker):
            return
        self._forget(worker)
        self.ending.append(worker)
        worker.since = self.state.clock()
        if worker.leaving:  # it has handed over all that it had
            self._report_loss(worker)
        if worker.exit_code is None:
            self.learn_pid(worker)
            if worker.pid:  # else it was never forked, or has ended with its fork server
                self.fork_server.kill(worker.pid)

    def learn_pid(self, worker: WorkerHandle) -> None:
        """Wait for the fork server's word: the worker may be faster."""
        while not worker.pid and (self.is_running(worker) or worker in self.ending):
            self.hear_server()

    def hear_server(self) -> None:
        """Take the fork server's next message, if there is one."""
        try:
            message = self.fork_server.receive()
        except ServerEnded as ended:
            self._restart_server(ended)
            return
        if message is None:
            return
        kind, body = message
        for worker in [*self.running.values(), *self.ending]:
            if kind is Say.FORKED and worker.number == body["number"]:
                worker.pid, self.refused_forks = body["pid"], 0
            elif kind is Say.NOT_FORKED and worker.number == body["number"]:
                self._could_not_fork(worker, body["reason"])
            elif kind is Say.EXITED and worker.pid == body["pid"]:
                self._exited(worker, None if worker.invalid else body["code"])

    def check(self) -> None:
        """Continue a fork server that does not answer, in case it was stopped; later kill it. Kill hung starts."""
        now = self.state.clock()
        for worker in self.running.values():
            if worker.pid and not worker.ready and not worker.reported and now - worker.since > START_SECONDS:
                told = f"{worker.node} did not start within {START_SECONDS:g} s and was killed"
                warn(told, "start_hung", node=worker.node, seconds=START_SECONDS)
                self.signal(worker.node, signal.SIGKILL)
        waits = [worker.since for worker in self.running.values() if not worker.pid]
        waits += [worker.since for worker in self.ending]
        silent = now - min(waits, default=now)
        if silent > SILENT_SECONDS:
            self.fork_server.process.kill()
        elif silent > STOPPED_SECONDS:
            self.fork_server.process.send_signal(signal.SIGCONT)

    def _could_not_fork(self, worker: WorkerHandle, reason: str) -> None:
        """Handle a failed fork: try again later while there is a worker. Raise JobError otherwise."""
        if self.is_running(worker):
            self._forget(worker)
        else:  # its socket was closed first
            self.ending.remove(worker)
        self.refused_forks += 1
        told = f"a worker cannot be started ({reason}). Raise the limit on processes (ulimit -u), or use fewer workers"
        none_ready = not any(one.ready for one in self.running.values())
        if self.refused_forks >= DEATHS_BEFORE_GIVING_UP and none_ready:
            raise JobError(told, "cannot_fork", reason=reason)
        if self.refused_forks == 1:
            warn(told, "cannot_fork", reason=reason)
        self.state.policy.retry(worker.index, self.state.clock() + RETRY_SECONDS)

    def _restart_server(self, ended: ServerEnded) -> None:
        """The workers have ended with the fork server: start another one, and replace them."""
        self.server_ends += 1
        workers = [*self.running.values(), *self.ending]
        pids = [worker.pid for worker in workers if worker.pid]
        for pid in pids:
            kill_group(pid)
        if self.server_ends >= DEATHS_BEFORE_GIVING_UP or not wait_until_gone(pids, END_SECONDS):
            raise ended
        warn("the fork server ended, and all workers with it. They are restarted", "fork_server_restarted")
        self.state.channels.remove(self.fork_server.socket)
        self.fork_server.restart()
        self.state.channels.add(self.fork_server.socket, self.hear_server)
        for worker in workers:
            worker.taken_away = True
            self._exited(worker, -signal.SIGKILL)

    def _exited(self, worker: WorkerHandle, code: int | None) -> None:
        """Handle the end of a worker's process and of all that it started: its memory can be reused."""
        worker.exit_code = code
        if code is not None and not worker.taken_away:
            log_exit("the evaluator" if worker.is_evaluator else f"worker {worker.node}", code)
        if worker.pid:
            self.hear(worker)  # what it had said before it ended
        self.lose(worker)
        self.ending.remove(worker)
        self._report_loss(worker)
        for block in worker.tasks.values():
            self.state.blocks.give_update(block)
        busy = bool(self.state.evaluations.requested if worker.is_evaluator else worker.tasks)
        self.state.policy.died(worker.death(bool(worker.tasks), busy), self.state.clock())
        if worker.is_evaluator and EVALUATOR not in self.running:
            self.state.evaluations.lost()
            self.spawn(EVALUATOR_INDEX)

    def _forget(self, worker: WorkerHandle) -> None:
        """Stop reading messages of a worker."""
        del self.running[worker.node]
        self.state.channels.remove(worker.socket)
        worker.socket.close()

    def _report_loss(self, worker: WorkerHandle) -> None:
        if worker.ready and not worker.is_evaluator and not worker.reported:
            worker.reported = True
            death = worker.death(bool(worker.tasks), busy=True)
            self.state.messages.append(Lost(worker.node, death.cause))
