"""Workers as processes of this machine: one hub thread, sockets for words, shared memory for tensors."""

import errno
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from oddlot.core.errors import JobError
from oddlot.core.events import Joined, Leaving, Lost, Refused
from oddlot.core.serialization import to_plain
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.core.user_code import user_code_failed
from oddlot.core.user_warnings import warn
from oddlot.engines.host import Arrival, Message
from oddlot.engines.local.block_pool import Blocks
from oddlot.engines.local.evaluations import Evaluations
from oddlot.engines.local.fork_client import Nursery, ServerEnded
from oddlot.engines.local.messages import (
    LONGEST_BYTES,
    Say,
    decode,
    encode,
    read_cancelled,
    read_evaluated,
    read_facts,
)
from oddlot.engines.local.orphans import kill_group, wait_until_gone
from oddlot.engines.local.respawn import DEATHS_BEFORE_GIVING_UP, Respawns, cause_of
from oddlot.engines.local.shared_memory import Arena, pack_parcel
from oddlot.engines.local.worker import Setup
from oddlot.engines.local.worker_handle import Life
from oddlot.engines.loop import life_name
from oddlot.wire.framing import FrameError

NO_ROOM = {errno.EAGAIN, errno.EWOULDBLOCK, errno.ENOBUFS}
STOPPED_SECONDS, SILENT_SECONDS = 30.0, 300.0
"""without an answer of the fork server, which imports PyTorch at first, until it is continued, and killed"""
START_SECONDS = 600.0
"""until a worker that is not ready counts as hung"""
LOOK_SECONDS = 0.5
"""between two looks whether the fork server answers"""
END_SECONDS, RETRY_SECONDS = 10.0, 5.0
"""for workers to end with their fork server; before a process that the system refused is asked for again"""
LONGEST_WAIT_SECONDS = 0.5
"""so that a signal handler's wish is seen soon"""
EVALUATOR = "evaluator"


class LocalEngine:
    """Mailbox and port of worker processes.

    `workers` processes plus, once something is evaluated, one that only evaluates. A worker that dies is reported
    lost and, with `respawn`, replaced under a new id (`Respawns`). Its blocks are used again only once its process has
    ended: until then it might write into them. The clock starts at `now` seconds.
    """

    def __init__(
        self,
        nursery: Nursery,
        setup: Setup,
        arena: Arena,
        blocks: Blocks,
        workers: int,
        respawn: bool = True,
        dollars_per_hour: float = 0.0,
        now: float = 0.0,
        taken: Collection[NodeId] = (),
    ) -> None:
        self.nursery, self.arena, self.blocks = nursery, arena, blocks
        self.respawns = Respawns(workers, respawn)
        self.dollars_per_hour, self.taken = dollars_per_hour, taken
        self._began = time.monotonic() - now
        self.spin_seconds = setup.spin_seconds
        self.parcel = pack_parcel(setup)
        self.lives: dict[NodeId, Life] = {}
        self.dying: list[Life] = []
        """lost workers whose process has not ended yet, as far as is known"""
        self.server_ends = self.not_forked = 0
        """in a row, without an answer or a fork between"""
        self.look_at = 0.0
        """when to look whether the fork server answers"""
        self.births = [0] * workers
        self.ready: deque[Message] = deque()
        self.evaluations = Evaluations()
        self.selector = selectors.DefaultSelector()
        self.selector.register(nursery.socket, selectors.EVENT_READ, self._hear_nursery)
        try:
            for index in range(workers):
                self._spawn(index)
        except JobError:
            self.close()
            raise

    # --- the mailbox ---------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def next(self, until: float) -> Message | None:
        """The next message, waiting for it until the time `until` or half a second at most."""
        if not self.ready:
            due = min(until, self.respawns.next_at, self.evaluations.deadline)
            for hear in self._wait(min(max(due - self.now, 0.0), LONGEST_WAIT_SECONDS)):
                hear()
            if self.now >= self.look_at:
                self.look_at = self.now + LOOK_SECONDS
                self._check_server()
            for index in self.respawns.due(self.now):
                self._spawn(index)
            self._check_evaluator()
        if not (
            self.ready or self.respawns.replaces or self.evaluations.blocks or self.lives.keys() - {EVALUATOR}
        ):
            told = "all workers are gone, and Local(respawn=False) replaces none of them"
            raise JobError(told, "no_workers_left")
        return self.ready.popleft() if self.ready else None

    def _wait(self, seconds: float) -> list[Callable[[], None]]:
        """What to call for the sockets that have something to read."""
        ready = self.selector.select(0)
        if self.spin_seconds:
            until = time.perf_counter() + min(seconds, self.spin_seconds)
            while not ready and time.perf_counter() < until:
                os.sched_yield()
                ready = self.selector.select(0)
        return [key.data for key, _ in ready or self.selector.select(seconds)]

    @property
    def is_spent(self) -> bool:
        """Never: what can be waited for in vain is told by `next`."""
        return False

    # --- the port ------------------------------------------------------------------------------

    def start(self, task: Task, weights: Any) -> None:
        """Name the blocks that the task reads and writes; its worker does the rest."""
        life = self.lives.get(task.node)
        if life is None:
            return  # it has just died: `Lost` waits to be told
        out = life.tasks[task.id] = self.blocks.take_update(life.index, weights)
        self.arena.marks[out] = 0
        body = {"task": to_plain(task), "weights": self.blocks.number(weights), "out": out}
        self._send(life, encode(Say.TASK, **body))

    def abort(self, task: TaskId, node: NodeId) -> None:
        """The worker looks for this before each minibatch."""
        if life := self.lives.get(node):
            self._send(life, encode(Say.ABORT, task=task))

    def evict(self, node: NodeId) -> None:
        """The worker is killed and replaced, which is no failed start: its samples are counted by the books."""
        if life := self.lives.get(node):
            life.taken_away = True
            self._signal(node, signal.SIGKILL)

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """The worker looks for this before each minibatch."""
        if life := self.lives.get(node):
            self._send(life, encode(Say.HAND_OVER, task=task))

    def evaluate(self, version: int, weights: Any) -> None:
        """Ask the evaluator, a process of its own that is started at the first call."""
        self.evaluations.blocks[version] = self.blocks.number(weights)
        if EVALUATOR in self.lives:
            self._ask_evaluator(version)
        else:
            self._fork(EVALUATOR, -1)

    def loaded(self) -> Iterable[TaskId]:
        """The tasks whose worker has marked their update block."""
        marks = self.arena.marks
        return [task for life in self.lives.values() for task, block in life.tasks.items() if marks[block]]

    def close(self) -> None:
        """Let go of every worker; closing the nursery ends them."""
        for life in self.lives.values():
            life.socket.close()
        self.selector.close()
        os.close(self.parcel)
        self.arena.close()

    # --- faults --------------------------------------------------------------------------------

    def kill(self, node: NodeId) -> None:
        """Send SIGKILL to the worker."""
        if life := self.lives.get(node):
            life.killed = True
        self._signal(node, signal.SIGKILL)

    def freeze(self, node: NodeId) -> None:
        """Send SIGSTOP to the worker."""
        self._signal(node, signal.SIGSTOP)

    def thaw(self, node: NodeId) -> None:
        """Send SIGCONT to the worker."""
        self._signal(node, signal.SIGCONT)

    def leave(self, node: NodeId) -> None:
        """Send SIGTERM to the worker."""
        self._signal(node, signal.SIGTERM)

    def _signal(self, node: NodeId, number: signal.Signals) -> None:
        life = self.lives.get(node)
        if life is not None and life.pid:
            with suppress(ProcessLookupError):  # it has ended, which will be told
                os.kill(life.pid, number)

    def slow(self, node: NodeId, factor: float) -> None:
        """Tell the worker, which drags its feet from its next minibatch on."""
        if life := self.lives.get(node):
            self._send(life, encode(Say.SLOW, factor=factor))

    def bar(self, machine: str, barred: bool) -> None:
        """Replace a worker that dies only once this is over."""
        index = int(machine.removeprefix("w")) - 1
        for life in (*self.lives.values(), *self.dying):
            life.taken_away = life.taken_away or (barred and life.index == index)
        self.respawns.bar(index, barred, self.now)

    # --- what comes in -------------------------------------------------------------------------

    def _hear_nursery(self) -> None:
        try:
            message = self.nursery.receive()
        except ServerEnded as ended:
            self._restart_server(ended)
            return
        if message is None:
            return
        kind, body = message
        for life in [*self.lives.values(), *self.dying]:
            if kind is Say.FORKED and life.number == body["number"]:
                life.pid, self.not_forked = body["pid"], 0
            elif kind is Say.NOT_FORKED and life.number == body["number"]:
                self._could_not_fork(life, body["reason"])
            elif kind is Say.EXITED and life.pid == body["pid"]:
                life.exit_code = None if life.invalid else body["code"]
                self._hear(life)  # what it had said before it ended
                self._lose(life)
                self._bury(life)

    def _hear(self, life: Life) -> None:
        while self.lives.get(life.node) is life:
            try:
                frame = life.socket.recv(LONGEST_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it ended before it had read all; what it had said comes now
            if not frame:
                self._lose(life)
                return
            try:
                kind, body = decode(frame)
                if kind not in _HEAR:
                    told = f"a worker does not say {kind.name}"
                    raise FrameError(told, "unexpected_message", kind=kind.name)
                _HEAR[kind](self, life, body)
            except FrameError as error:
                told = f"worker {life.node} sent an invalid message and is killed: {error}"
                warn(told, "invalid_message", **{**error.fields, "node": life.node, "fault": error.code})
                life.invalid = True
                self._lose(life)

    def _learn_pid(self, life: Life) -> None:
        """The worker may be faster than the fork server, which is about to tell."""
        while not life.pid and (self.lives.get(life.node) is life or life in self.dying):
            self._hear_nursery()

    def _said_ready(self, life: Life, _: dict[str, Any]) -> None:
        if life.ready:
            raise FrameError("it was ready before", "ready_twice")
        self._learn_pid(life)
        if self.lives.get(life.node) is not life:
            return  # it ended with its fork server
        life.ready = True
        if life.node == EVALUATOR:
            for version in self.evaluations.blocks:
                self._ask_evaluator(version)
        else:
            self.ready.append(Joined(life.node, self.dollars_per_hour))

    def _said_done(self, life: Life, body: dict[str, Any]) -> None:
        facts = read_facts(body.get("facts"), life.node)
        block = self._end_task(life, facts.id)
        self.respawns.worked()
        self.server_ends = 0
        life.fruitful = True
        try:
            self.ready.append(Arrival(facts, self.blocks.payload(facts, block)))
        except FrameError as error:
            self.ready.append(Refused(facts.id, str(error)))
        self._dismiss(life)

    def _said_cancelled(self, life: Life, body: dict[str, Any]) -> None:
        ended = read_cancelled(body, life.node)
        self.blocks.give_update(self._end_task(life, ended.task))
        self.ready.append(ended)
        self._dismiss(life)

    def _end_task(self, life: Life, task: TaskId) -> int:
        """The task's block."""
        if task not in life.tasks:
            raise FrameError(f"it has no task {task!r}", "no_such_task", task=task)
        return life.tasks.pop(task)

    def _said_leaving(self, life: Life, _: dict[str, Any]) -> None:
        if life.node != EVALUATOR:  # which is no machine of its own
            life.leaving = True
            self.ready.append(Leaving(life.node))
            self._dismiss(life)

    def _dismiss(self, life: Life) -> None:
        """Close the socket of a worker that leaves and has handed over all."""
        if life.leaving and not life.tasks:
            self._lose(life)

    def _said_evaluated(self, life: Life, body: dict[str, Any]) -> None:
        told = read_evaluated(body)
        if life.node != EVALUATOR or told.version not in self.evaluations.blocks:
            raise FrameError(
                f"the metrics of version {told.version} were not requested",
                "unrequested_metrics",
                version=told.version,
            )
        self.respawns.measured()
        self.evaluations.done(told.version, self.now)
        self.ready.append(told)

    def _said_failed(self, life: Life, body: dict[str, Any]) -> None:
        text, code, fields = str(body.get("text")), body.get("code"), body.get("fields")
        if type(code) is not str or type(fields) is not dict:  # no error of ours
            raise user_code_failed(life.node, text)
        error = JobError(text, code)
        error.fields = fields
        raise error

    # --- births and deaths ---------------------------------------------------------------------

    def _spawn(self, index: int) -> None:
        if index < 0:
            self._fork(EVALUATOR, -1)
            return
        name = f"w{index + 1}"
        while (node := life_name(name, self.births[index] + 1)) in self.taken:
            self.births[index] += 1
        self.births[index] += 1
        self._fork(node, index)

    def _fork(self, node: NodeId, index: int) -> None:
        try:
            number, ours = self.nursery.fork(max(index, 0), [self.arena.fd, self.parcel])
        except ServerEnded as ended:
            self._restart_server(ended)
            number, ours = self.nursery.fork(max(index, 0), [self.arena.fd, self.parcel])
        ours.setblocking(False)
        life = self.lives[node] = Life(node, index, number, ours, self.now)
        self.selector.register(ours, selectors.EVENT_READ, partial(self._attend, life))

    def _could_not_fork(self, life: Life, reason: str) -> None:
        """The system refuses another process: try again later, as long as a worker is there."""
        self._forget(life)
        self.not_forked += 1
        told = f"a worker cannot be started ({reason}): raise the limit on processes (ulimit -u), or use fewer workers"
        if self.not_forked >= DEATHS_BEFORE_GIVING_UP and not any(one.ready for one in self.lives.values()):
            raise JobError(told, "cannot_fork", reason=reason)
        if self.not_forked == 1:
            warn(told, "cannot_fork", reason=reason)
        self.respawns.again(life.index, self.now + RETRY_SECONDS)

    def _check_server(self) -> None:
        """A fork server that does not answer is continued, in case that it was stopped, and then killed."""
        waits = [life.since for life in self.lives.values() if not life.pid] + [
            life.since for life in self.dying
        ]
        for life in self.lives.values():
            if life.pid and not life.ready and not life.told and self.now - life.since > START_SECONDS:
                told = f"{life.node} has not started within {START_SECONDS:g} s and is killed"
                warn(told, "start_hung", node=life.node, seconds=START_SECONDS)
                self._signal(life.node, signal.SIGKILL)
        silent = self.now - min(waits, default=self.now)
        if silent > SILENT_SECONDS:
            self.nursery.process.kill()
        elif silent > STOPPED_SECONDS:
            self.nursery.process.send_signal(signal.SIGCONT)

    def _restart_server(self, ended: ServerEnded) -> None:
        """The workers have ended with the fork server: another one takes its place, and they are replaced."""
        self.server_ends += 1
        lives = [*self.lives.values(), *self.dying]
        pids = [life.pid for life in lives if life.pid]
        for pid in pids:
            kill_group(pid)
        if self.server_ends >= DEATHS_BEFORE_GIVING_UP or not wait_until_gone(pids, END_SECONDS):
            raise ended
        warn(
            "the fork server ended, and all workers with it; they are started again", "fork_server_restarted"
        )
        self.selector.unregister(self.nursery.socket)
        self.nursery.restart()
        self.selector.register(self.nursery.socket, selectors.EVENT_READ, self._hear_nursery)
        for life in lives:
            life.taken_away, life.exit_code = True, -signal.SIGKILL
            if life.pid:
                self._hear(life)  # what it had said before it ended
            self._lose(life)
            self._bury(life)

    def _lose(self, life: Life) -> None:
        """A worker is gone for the run: its process is killed, in case that it has only closed its socket."""
        if self.lives.get(life.node) is not life:
            return
        self._forget(life)
        self.dying.append(life)
        life.since = self.now
        if life.leaving:  # it has handed over all that it had
            self._tell_loss(life)
        if life.exit_code is None:
            self._learn_pid(life)
            self.nursery.kill(life.pid)

    def _forget(self, life: Life) -> None:
        """It is not heard any more."""
        del self.lives[life.node]
        self.selector.unregister(life.socket)
        life.socket.close()

    def _tell_loss(self, life: Life) -> None:
        if life.ready and life.node != EVALUATOR and not life.told:
            life.told = True
            self.ready.append(Lost(life.node, cause_of(life)))

    def _bury(self, life: Life) -> None:
        """Its process has ended, and all that it had started: its memory may be used again."""
        self.dying.remove(life)
        self._tell_loss(life)
        for block in life.tasks.values():
            self.blocks.give_update(block)
        idle = life.ready and not (self.evaluations.blocks if life.node == EVALUATOR else life.tasks)
        self.respawns.died(life, self.now, idle)
        if life.node == EVALUATOR and EVALUATOR not in self.lives:
            self.evaluations.lost()
            self._fork(EVALUATOR, -1)

    def _ask_evaluator(self, version: int) -> None:
        life = self.lives[EVALUATOR]
        if life.ready:
            block = self.evaluations.blocks[version]
            self._send(life, encode(Say.EVALUATE, version=version, weights=block))
            self.evaluations.sent(self.now)

    def _check_evaluator(self) -> None:
        """Kill it if it has hung; another one takes its place."""
        if self.now >= self.evaluations.deadline and (life := self.lives.get(EVALUATOR)):
            self.evaluations.lost()
            warn("the evaluator does not answer and is killed; another one measures", "evaluator_hung")
            self._signal(life.node, signal.SIGKILL)

    def _send(self, life: Life, frame: bytes) -> None:
        """Send a message, or keep it until the socket has room: a worker with many tasks in flight reads slowly."""
        life.outbox.append(frame)
        if len(life.outbox) == 1:
            self._send_waiting(life)

    def _send_waiting(self, life: Life) -> None:
        try:
            while life.outbox:
                life.socket.send(life.outbox[0])
                life.outbox.popleft()
        except OSError as error:
            if error.errno not in NO_ROOM:  # it is dying: its end will be told
                life.outbox.clear()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if life.outbox else 0)
        if self.selector.get_key(life.socket).events != events:
            self.selector.modify(life.socket, events, partial(self._attend, life))

    def _attend(self, life: Life) -> None:
        """Its socket has something to read, or room."""
        if life.outbox and self.lives.get(life.node) is life:
            self._send_waiting(life)
        self._hear(life)


_HEAR: dict[Say, Callable[[LocalEngine, Life, dict[str, Any]], None]] = {
    Say.READY: LocalEngine._said_ready,
    Say.DONE: LocalEngine._said_done,
    Say.CANCELLED: LocalEngine._said_cancelled,
    Say.EVALUATED: LocalEngine._said_evaluated,
    Say.FAILED: LocalEngine._said_failed,
    Say.LEAVING: LocalEngine._said_leaving,
}
