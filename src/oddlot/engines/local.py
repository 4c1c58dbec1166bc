"""Workers as processes of this machine: one hub thread, sockets for words, shared memory for tensors."""

import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from oddlot.core import words as w
from oddlot.core.errors import JobError
from oddlot.core.plain import from_plain, to_plain
from oddlot.engines.arena import Arena, pack_parcel
from oddlot.engines.blocks import Blocks
from oddlot.engines.host import Arrival, Message
from oddlot.engines.mailbox import life_name
from oddlot.engines.messages import LONGEST_BYTES, Say, decode, encode
from oddlot.engines.nursery import Nursery
from oddlot.engines.worker import Setup
from oddlot.wire.framing import FrameError

LONGEST_WAIT_SECONDS = 0.5
"""so that a signal handler's wish is seen soon"""
RESPAWNS_A_MINUTE = 3
DEATHS_BEFORE_GIVING_UP = 3
EVALUATOR = "evaluator"


@dataclass(slots=True)
class _Life:
    """One life of a worker process."""

    node: w.NodeId
    index: int
    socket: socket.socket
    pid: int = 0
    ready: bool = False
    tasks: dict[w.TaskId, int] = field(default_factory=dict)
    """the update block of every task it holds"""


class LocalEngine:
    """Mailbox and port of worker processes.

    `workers` processes plus, once something is evaluated, one that only evaluates. A worker that dies is reported
    lost and, with `respawn`, replaced under a new id, at most three times a minute. The clock starts at `now` seconds.
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
        taken: Collection[w.NodeId] = (),
    ) -> None:
        self.nursery, self.arena, self.blocks = nursery, arena, blocks
        self.respawn, self.dollars_per_hour, self.taken = respawn, dollars_per_hour, taken
        self._began = time.monotonic() - now
        self.spin_seconds = setup.spin_seconds
        self.parcel = pack_parcel(setup)
        self.lives: dict[w.NodeId, _Life] = {}
        self.births = [0] * workers
        self.deaths: list[deque[float]] = [deque(maxlen=RESPAWNS_A_MINUTE) for _ in range(workers)]
        self.early_deaths = 0
        self.ready: deque[Message] = deque()
        self.timers: list[tuple[float, int]] = []
        """when to respawn which worker"""
        self.evaluations: dict[int, int] = {}
        """block by version, of what the evaluator was asked"""
        self.selector = selectors.DefaultSelector()
        self.selector.register(nursery.socket, selectors.EVENT_READ, self._hear_nursery)
        for index in range(workers):
            self._spawn(index)

    # --- the mailbox ---------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def next(self, until: float) -> Message | None:
        """The next message, waiting for it until the time `until` or half a second at most."""
        if not self.ready:
            due = min(until, self.timers[0][0]) if self.timers else until
            for hear in self._wait(min(max(due - self.now, 0.0), LONGEST_WAIT_SECONDS)):
                hear()
            while self.timers and self.timers[0][0] <= self.now:
                self._spawn(heappop(self.timers)[1])
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

    # --- the port ------------------------------------------------------------------------------

    def start(self, task: w.Task, weights: Any) -> None:
        """Name the blocks that the task reads and writes; its worker does the rest."""
        life = self.lives[task.node]
        out = life.tasks[task.id] = self.blocks.take_update(life.index)
        body = {"task": to_plain(task), "weights": self.blocks.number(weights), "out": out}
        self._send(life, encode(Say.TASK, **body))

    def abort(self, task: w.TaskId, node: w.NodeId) -> None:
        """The worker looks for this before each minibatch."""
        if life := self.lives.get(node):
            self._send(life, encode(Say.ABORT, task=task))

    def evaluate(self, version: int, weights: Any) -> None:
        """Ask the evaluator, a process of its own that is started at the first call."""
        self.evaluations[version] = self.blocks.number(weights)
        if EVALUATOR in self.lives:
            self._ask_evaluator(version)
        else:
            self._fork(EVALUATOR, -1)

    def close(self) -> None:
        """Let go of every worker; closing the nursery ends them."""
        for life in self.lives.values():
            life.socket.close()
        self.selector.close()
        os.close(self.parcel)

    # --- faults --------------------------------------------------------------------------------

    def kill(self, node: w.NodeId) -> None:
        """Send SIGKILL to the worker."""
        os.kill(self.lives[node].pid, signal.SIGKILL)

    def freeze(self, node: w.NodeId) -> None:
        """Send SIGSTOP to the worker."""
        os.kill(self.lives[node].pid, signal.SIGSTOP)

    def thaw(self, node: w.NodeId) -> None:
        """Send SIGCONT to the worker."""
        os.kill(self.lives[node].pid, signal.SIGCONT)

    # --- what comes in -------------------------------------------------------------------------

    def _hear_nursery(self) -> None:
        message = self.nursery.receive()
        if message is None:
            raise JobError("the fork server was killed, and all workers with it; resume the run to go on")
        kind, body = message
        if kind is Say.FORKED and body["node"] in self.lives:
            self.lives[body["node"]].pid = body["pid"]
            return
        for life in [one for one in self.lives.values() if one.pid == body["pid"]]:
            self._hear(life)  # what it had said before it ended
            self._died(life)

    def _hear(self, life: _Life) -> None:
        while self.lives.get(life.node) is life:
            try:
                frame = life.socket.recv(LONGEST_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                frame = b""
            if not frame:
                self._died(life)
                return
            kind, body = decode(frame)
            _HEAR[kind](self, life, body)

    def _said_ready(self, life: _Life, _: dict[str, Any]) -> None:
        life.ready = True
        if life.node == EVALUATOR:
            for version in self.evaluations:
                self._ask_evaluator(version)
        else:
            self.ready.append(w.Joined(life.node, self.dollars_per_hour))

    def _said_done(self, life: _Life, body: dict[str, Any]) -> None:
        self.early_deaths = 0
        facts = from_plain(w.Facts, body["facts"])
        block = life.tasks.pop(facts.id)
        try:
            self.ready.append(Arrival(facts, self.blocks.payload(facts, block)))
        except FrameError as error:
            self.ready.append(w.Refused(facts.id, str(error)))

    def _said_cancelled(self, life: _Life, body: dict[str, Any]) -> None:
        self.blocks.give_update(life.tasks.pop(body["task"]))
        self.ready.append(w.Cancelled(body["task"], life.node))

    def _said_evaluated(self, _: _Life, body: dict[str, Any]) -> None:
        self.early_deaths = 0
        self.evaluations.pop(body["version"])
        self.ready.append(w.Evaluated(body["version"], body["metrics"]))

    def _said_failed(self, life: _Life, body: dict[str, Any]) -> None:
        if body["ours"]:
            raise JobError(body["text"])
        raise JobError(f"the job's own code failed on {life.node}:\n{body['text']}")

    # --- births and deaths ---------------------------------------------------------------------

    def _spawn(self, index: int) -> None:
        name = f"w{index + 1}"
        while (node := life_name(name, self.births[index] + 1)) in self.taken:
            self.births[index] += 1
        self.births[index] += 1
        self._fork(node, index)

    def _fork(self, node: w.NodeId, index: int) -> None:
        ours = self.nursery.fork(node, max(index, 0), [self.arena.fd, self.parcel])
        ours.setblocking(False)
        life = self.lives[node] = _Life(node, index, ours)
        self.selector.register(ours, selectors.EVENT_READ, lambda: self._hear(life))

    def _died(self, life: _Life) -> None:
        if self.lives.get(life.node) is not life:
            return
        del self.lives[life.node]
        self.selector.unregister(life.socket)
        life.socket.close()
        for block in life.tasks.values():
            self.blocks.give_update(block)
        self._count_early_death(life)
        if life.node == EVALUATOR:
            self._fork(EVALUATOR, -1)
            return
        if life.ready:
            self.ready.append(w.Lost(life.node))
        if self.respawn:
            deaths = self.deaths[life.index]
            again = max(self.now, deaths[0] + 60.0) if len(deaths) == RESPAWNS_A_MINUTE else self.now
            deaths.append(again)
            heappush(self.timers, (again, life.index))

    def _count_early_death(self, life: _Life) -> None:
        """A worker that cannot even start, or an evaluator that never answers, is not bad luck."""
        if not life.ready or life.node == EVALUATOR:
            self.early_deaths += 1
        if self.early_deaths >= DEATHS_BEFORE_GIVING_UP:
            raise JobError(
                f"{self.early_deaths} processes in a row died before they had done anything, the last one {life.node}: "
                "look for what kills them (too little memory?) in the lines above"
            )

    def _ask_evaluator(self, version: int) -> None:
        life = self.lives[EVALUATOR]
        if life.ready:
            self._send(life, encode(Say.EVALUATE, version=version, weights=self.evaluations[version]))

    def _send(self, life: _Life, frame: bytes) -> None:
        with suppress(OSError):  # it is dying or frozen: its end, or the task's deadline, will be told
            life.socket.send(frame)


_HEAR: dict[Say, Callable[[LocalEngine, _Life, dict[str, Any]], None]] = {
    Say.READY: LocalEngine._said_ready,
    Say.DONE: LocalEngine._said_done,
    Say.CANCELLED: LocalEngine._said_cancelled,
    Say.EVALUATED: LocalEngine._said_evaluated,
    Say.FAILED: LocalEngine._said_failed,
}
