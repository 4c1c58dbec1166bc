"""Processes of the fork server: they are started, their messages are read, and they are killed and replaced.

`Processes` is the base class for workers and peers, and `WorkerProcesses` the class for workers and the evaluator.
"""

import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from oddlot.core.events import Lost
from oddlot.core.support.errors import JobError
from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import NodeId
from oddlot.engines.host import Message
from oddlot.engines.local.block_pool import BlockPool
from oddlot.engines.local.channels import Channels, ProcessHandle, WorkerHandle
from oddlot.engines.local.fork_client import ForkClient, ServerEnded
from oddlot.engines.local.messages import LONGEST_BYTES, Say, decode
from oddlot.engines.local.orphans import kill_group, wait_until_gone
from oddlot.engines.processes.evaluations import Evaluations
from oddlot.engines.processes.node_ids import EVALUATOR, NodeIds
from oddlot.engines.processes.respawn import DEATHS_BEFORE_GIVING_UP, EVALUATOR_INDEX, RespawnPolicy, log_exit
from oddlot.wire.framing import FrameError

STOPPED_SECONDS, SILENT_SECONDS = 30.0, 300.0
"""Seconds until an unresponsive fork server is resumed, and until it is killed. It imports PyTorch at its start."""
START_SECONDS = 600.0
"""Seconds until a process that is not ready counts as hung."""
END_SECONDS, RETRY_SECONDS = 10.0, 5.0
"""Seconds for workers to end with their fork server, and until a failed fork is retried."""
Handle = TypeVar("Handle", bound=ProcessHandle)


class Processes(Generic[Handle]):
    """The processes of a run's workers or peers. A subclass starts them with `_fork`, and handles their end.

    `clock` returns the seconds since the start of the run.
    """

    title = "worker"
    modules: Sequence[str] = ()
    """Module with the program of a process, then other modules that the fork server imports. Empty: a worker's program.
    Processes with another program outlive the fork server."""

    def __init__(
        self,
        fork_server: ForkClient,
        ids: NodeIds,
        channels: Channels,
        policy: RespawnPolicy,
        clock: Callable[[], float],
    ) -> None:
        self.fork_server, self.ids, self.channels, self.policy = fork_server, ids, channels, policy
        self.clock = clock
        self.readers: dict[Say, Callable[[Handle, dict[str, Any]], None]] = {}
        """Functions that handle the messages of a process."""
        self.running: dict[NodeId, Handle] = {}
        """Workers and the evaluator, or peers. Their messages are read."""
        self.ending: list[Handle] = []
        """Lost workers or peers with a process that may still run."""
        self.server_ends = self.rejected_forks = 0
        """Ends of the fork server since the last update, and failed forks since the last fork."""
        channels.add(fork_server.socket, self.hear_server)

    def _left(self, process: Handle) -> None:
        """Handle the closed socket of a process."""

    def _ended(self, process: Handle) -> None:
        """Handle the end of a process and of all processes that it started."""

    def _fork(self, node: NodeId, index: int, fds: Sequence[int]) -> dict[str, Any]:
        """Request a process with these descriptors. Return the fields of its handle."""
        more = {"modules": [*self.modules], "node": node} if self.modules else {}
        try:
            number, ours = self.fork_server.fork(max(index, 0), [*fds], **more)
        except ServerEnded as ended:
            self._restart_server(ended)
            number, ours = self.fork_server.fork(max(index, 0), [*fds], **more)
        return {"node": node, "index": index, "since": self.clock(), "number": number, "socket": ours}

    def _add(self, process: Handle) -> Handle:
        """Start reading the messages of a new process."""
        self.running[process.node] = process
        self.channels.add_process(process, self.hear)
        return process

    def is_running(self, process: Handle) -> bool:
        """Return whether messages of the process are still read."""
        return self.running.get(process.node) is process

    def signal(self, node: NodeId, number: signal.Signals) -> None:
        """Send a signal to a process, if it runs."""
        process = self.running.get(node)
        if process is not None and process.pid:
            with suppress(ProcessLookupError):  # it has ended; its end will be reported
                os.kill(process.pid, number)

    def hear(self, process: Handle) -> None:
        """Read all messages of a process. Kill it if a message is invalid."""
        while self.is_running(process):
            try:
                frame = process.socket.recv(LONGEST_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it ended with unread messages; its own messages come next
            if not frame:
                self.lose(process)
                return
            try:
                kind, body = decode(frame)
                if kind not in self.readers:
                    message = f"{self.title}s must not send {kind.name}"
                    raise FrameError(message, "unexpected_message", kind=kind.name)
                self.readers[kind](process, body)
            except FrameError as error:
                message = f"{self.title} {process.node} sent an invalid message and was killed: {error}"
                warn(
                    message, "invalid_message", **{**error.fields, "node": process.node, "fault": error.code}
                )
                process.invalid = True
                self.lose(process)

    def lose(self, process: Handle) -> None:
        """Stop reading a process's messages, and kill it: it may have only closed its socket."""
        if not self.is_running(process):
            return
        self._forget(process)
        self.ending.append(process)
        process.since = self.clock()
        self._left(process)
        if process.exit_code is not None:
            return
        self.learn_pid(process)
        if process.is_orphan:
            kill_group(process.pid)
            wait_until_gone([process.pid], END_SECONDS)
            self._exited(process, None)
        elif process.pid:  # otherwise it was never forked, or has ended with its fork server
            self.fork_server.kill(process.pid)

    def learn_pid(self, process: Handle) -> None:
        """Wait until the fork server has sent the process's id. The process's own messages may arrive first."""
        while not process.pid and (self.is_running(process) or process in self.ending):
            self.hear_server()

    def hear_server(self) -> None:
        """Handle the fork server's next message, if there is one."""
        try:
            message = self.fork_server.receive()
        except ServerEnded as ended:
            self._restart_server(ended)
            return
        if message is None:
            return
        kind, body = message
        for process in [*self.running.values(), *self.ending]:
            if kind is Say.FORKED and process.number == body["number"]:
                process.pid, self.rejected_forks = body["pid"], 0
            elif kind is Say.NOT_FORKED and process.number == body["number"]:
                self._could_not_fork(process, body["reason"])
            elif kind is Say.EXITED and process.pid == body["pid"]:
                self._exited(process, None if process.invalid else body["code"])

    def check(self) -> None:
        """Kill processes that do not become ready. Resume a fork server that does not respond; later kill it."""
        now = self.clock()
        for process in self.running.values():
            is_silent = now - process.since > START_SECONDS
            if process.pid and is_silent and not process.ready and not process.reported:
                message = f"{process.node} did not start within {START_SECONDS:g} s and was killed"
                warn(message, "start_hung", node=process.node, seconds=START_SECONDS)
                self.signal(process.node, signal.SIGKILL)
        waits = [process.since for process in self.running.values() if not process.pid]
        waits += [process.since for process in self.ending]
        silent = now - min(waits, default=now)
        if silent > SILENT_SECONDS:
            self.fork_server.process.kill()
        elif silent > STOPPED_SECONDS:
            self.fork_server.process.send_signal(signal.SIGCONT)

    def _could_not_fork(self, process: Handle, reason: str) -> None:
        """Handle a failed fork: retry later. Raise JobError after repeated failures if no process is ready."""
        if self.is_running(process):
            self._forget(process)
        else:  # its socket was closed first
            self.ending.remove(process)
        self.rejected_forks += 1
        advice = "Raise the limit on processes (ulimit -u), or use fewer workers"
        message = f"a {self.title} cannot be started ({reason}). {advice}"
        none_ready = not any(one.ready for one in self.running.values())
        if self.rejected_forks >= DEATHS_BEFORE_GIVING_UP and none_ready:
            raise JobError(message, "cannot_fork", reason=reason)
        if self.rejected_forks == 1:
            warn(message, "cannot_fork", reason=reason)
        self.policy.retry(process.index, self.clock() + RETRY_SECONDS)

    def _restart_server(self, ended: ServerEnded) -> None:
        """Start another fork server, and replace the workers that ended with the previous fork server. Peers
        continue."""
        self.server_ends += 1
        outlives = bool(self.modules)
        going_on = [one for one in self.running.values() if outlives and one.pid]
        others = [one for one in (*self.running.values(), *self.ending) if one not in going_on]
        pids = [one.pid for one in others if one.pid]
        for pid in pids:
            kill_group(pid)
        if self.server_ends >= DEATHS_BEFORE_GIVING_UP or not wait_until_gone(pids, END_SECONDS):
            raise ended
        message = "the fork server ended, and all workers with it. They are restarted"
        warn("the fork server ended and is restarted" if outlives else message, "fork_server_restarted")
        self.channels.remove(self.fork_server.socket)
        self.fork_server.restart()
        self.channels.add(self.fork_server.socket, self.hear_server)
        for process in going_on:
            process.is_orphan = True
        for process in others:
            process.taken_away = True
            self._exited(process, -signal.SIGKILL)

    def _exited(self, process: Handle, code: int | None) -> None:
        """Record the exit of a process, and handle its end."""
        process.exit_code = code
        if code is not None and not process.taken_away:
            log_exit("the evaluator" if process.is_evaluator else f"{self.title} {process.node}", code)
        if process.pid:
            self.hear(process)  # its last messages
        self.lose(process)
        self.ending.remove(process)
        self._ended(process)

    def _forget(self, process: Handle) -> None:
        """Stop reading messages of a process."""
        del self.running[process.node]
        self.channels.remove(process.socket)
        process.socket.close()


class WorkerProcesses(Processes[WorkerHandle]):
    """The processes of workers, and the evaluator.

    `fds` are the descriptors that each worker gets: shared memory and the job. A worker's blocks are reused only after
    its process has ended, because it might write to them until then.
    """

    def __init__(
        self,
        fork_server: ForkClient,
        fds: list[int],
        ids: NodeIds,
        blocks: BlockPool,
        channels: Channels,
        respawn: bool,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(fork_server, ids, channels, RespawnPolicy(len(ids.names), respawn), clock)
        self.fds, self.blocks, self.evaluations = fds, blocks, Evaluations()
        self.messages: deque[Message] = deque()
        """Messages for the host."""

    def spawn(self, index: int) -> None:
        """Start a worker, or the evaluator."""
        self._add(WorkerHandle(**self._fork(self.ids.next(index), index, self.fds)))

    def bar(self, index: int, barred: bool) -> None:
        """Set whether the worker is barred: it is not replaced after it has ended."""
        for worker in (*self.running.values(), *self.ending):
            worker.taken_away = worker.taken_away or (barred and worker.index == index)
        self.policy.bar(index, barred, self.clock())

    def _left(self, worker: WorkerHandle) -> None:
        """Report the loss of a leaving worker that has sent all updates."""
        if worker.leaving:
            self._report_loss(worker)

    def _ended(self, worker: WorkerHandle) -> None:
        """Report the loss of a worker, free its blocks, and replace it."""
        self._report_loss(worker)
        for block in worker.tasks.values():
            self.blocks.give_update(block)
        busy = bool(self.evaluations.requested if worker.is_evaluator else worker.tasks)
        self.policy.died(worker.death(bool(worker.tasks), busy), self.clock())
        if worker.is_evaluator and EVALUATOR not in self.running:
            self.evaluations.lost()
            self.spawn(EVALUATOR_INDEX)

    def _report_loss(self, worker: WorkerHandle) -> None:
        if worker.ready and not worker.is_evaluator and not worker.reported:
            worker.reported = True
            death = worker.death(bool(worker.tasks), busy=True)
            self.messages.append(Lost(worker.node, death.cause))
