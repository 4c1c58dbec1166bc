"""The program of a worker process: it executes tasks and writes updates into blocks of shared memory."""

import gc
import os
import signal
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from oddlot.core.events import Cancelled
from oddlot.core.support.errors import OddlotWarning
from oddlot.core.support.serialization import from_plain, to_plain
from oddlot.core.tasks import GRADIENT_KINDS, Task
from oddlot.engines.local.messages import LONGEST_BYTES, Say, decode, encode
from oddlot.engines.local.orphans import die_with_parent, lead_group
from oddlot.engines.local.shared_memory import Arena, open_parcel
from oddlot.engines.processes.memory_allocator import keep_memory
from oddlot.engines.processes.pace import Pace, PacedControl
from oddlot.engines.processes.process_setup import WorkerSetup, loading_learner_of
from oddlot.engines.processes.user_code_error import plain_failure
from oddlot.engines.task_runner import TaskRunner
from oddlot.machines.machine import Machine
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.train.devices import choose_device
from oddlot.wire.packet import Packet


@dataclass(frozen=True, kw_only=True)
class Setup(WorkerSetup):
    """The setup of a worker, sent once."""

    machines: tuple[Machine, ...]
    """A machine for each worker. The worker imitates the machine's speed. Empty: full speed."""
    blocks: int
    block_bytes: int
    spin_seconds: float
    """Seconds to poll for messages before sleeping, because waking up takes longer than a small merge."""


class Worker(PacedControl):
    """A worker process. It is also the `Control` of the tasks that it executes."""

    def __init__(self, hub: socket.socket, arena_fd: int, parcel_fd: int, index: int) -> None:
        super().__init__()
        self.hub = hub
        self.backlog: deque[tuple[Say, dict[str, Any]]] = deque()
        self.out = -1
        """Block of the current task's update."""
        setup: Setup = open_parcel(parcel_fd)
        setup.process.apply(setup.job)
        self.setup = setup
        machine = setup.machines[index] if setup.machines else None
        self.pace = Pace(machine, setup.seed, setup.job.batch_size)
        self.arena = Arena(setup.blocks, setup.block_bytes, arena_fd)
        self.flats: dict[int, FlatBuffer] = {}
        learner = loading_learner_of(setup, choose_device(setup.job.device, index))
        self.runner = TaskRunner(learner, setup.encoder)
        self.scratch = FlatBuffer.empty(setup.layout) if setup.encoder else None

    def flat(self, block: int) -> FlatBuffer:
        """Return the block of shared memory with this number."""
        if block not in self.flats:
            self.flats[block] = FlatBuffer(
                self.setup.layout, self.arena.block(block)[: self.setup.layout.bytes]
            )
        return self.flats[block]

    def serve(self) -> NoReturn:
        """Execute tasks until the hub closes the socket. After SIGTERM, it does so once all updates are sent."""
        signal.signal(signal.SIGTERM, self._leave)
        gc.freeze()  # PyTorch and the job stay; searching them for garbage would take 80 ms during a step
        self.hub.send(encode(Say.READY))
        while True:
            kind, body = self.backlog.popleft() if self.backlog else self._wait()
            if kind is Say.TASK:
                self._task(from_plain(Task, body["task"]), body["weights"], body["out"])
            elif kind is Say.SLOW:
                self.pace.slowness = float(body["factor"])
            elif kind is Say.EVALUATE:
                metrics = self.runner.evaluate(self.flat(body["weights"]))
                self.hub.send(encode(Say.EVALUATED, version=body["version"], metrics=metrics))

    def _leave(self, *_: object) -> None:
        """Handle a preemption notice: start no further minibatch, and send the finished parts of tasks."""
        if not self.leaving:
            self.leaving = True
            with suppress(OSError):  # the hub has ended
                self.hub.send(encode(Say.LEAVING))

    def _task(self, task: Task, weights: int, out: int) -> None:
        self.out = out
        answer = self.runner.run(task, self.flat(weights), self.scratch or self.flat(out), self)
        waiting = {body["task"]["id"] for kind, body in self.backlog if kind is Say.TASK}
        self.aborted &= waiting
        self.hurried &= waiting
        if isinstance(answer, Cancelled):
            sizes = {"bytes_down": answer.bytes_down, "bytes_data": answer.bytes_data}
            self.hub.send(encode(Say.CANCELLED, task=task.id, **sizes))
        else:
            self.hub.send(encode(Say.DONE, facts=to_plain(answer)))

    # --- the control of a task -----------------------------------------------------------------

    def loaded(self, task: Task) -> None:
        """Mark whether the hub may change the version's block, and start the pace."""
        if task.kind in GRADIENT_KINDS and not self.setup.layout.has_buffers:
            self.arena.marks[self.out] = 1  # the learner computes on a copy
        super().loaded(task)

    def read(self) -> None:
        """Read messages of the hub without waiting."""
        while True:
            try:
                kind, body = self._receive(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if kind is Say.ABORT:
                self.aborted.add(body["task"])
            elif kind is Say.HAND_OVER:
                self.hurried.add(body["task"])
            elif kind is Say.SLOW:
                self.pace.slowness = float(body["factor"])
            else:
                self.backlog.append((kind, body))

    def deliver(self, packet: Packet) -> int:
        """Put the packet into the task's block."""
        return packet.write(self.arena.block(self.out).numpy())

    def _wait(self) -> tuple[Say, dict[str, Any]]:
        until = time.perf_counter() + self.setup.spin_seconds
        while time.perf_counter() < until:
            with suppress(BlockingIOError):
                return self._receive(socket.MSG_DONTWAIT)
            os.sched_yield()
        return self._receive(0)

    def _receive(self, flags: int) -> tuple[Say, dict[str, Any]]:
        frame = self.hub.recv(LONGEST_BYTES, flags)
        if not frame:
            os._exit(0)
        return decode(frame)


def _show(
    hub: socket.socket, show: Callable[..., None], message: Warning | str, *where: Any, **more: Any
) -> None:
    """Send a warning of oddlot to the hub. Show any other warning."""
    if isinstance(message, OddlotWarning):
        with suppress(OSError):  # the hub has ended
            hub.send(encode(Say.WARNED, **plain_failure(message)))
    else:
        show(message, *where, **more)


def main(fds: list[int], body: dict[str, Any], parent: int) -> NoReturn:
    """Run a forked worker until it ends. A user's exception is sent to the hub with its traceback."""
    die_with_parent(parent)
    keep_memory()
    lead_group(os.getpid())
    for number in (signal.SIGINT, signal.SIGTTOU):  # it may print to the terminal of another group
        signal.signal(number, signal.SIG_IGN)
    hub = socket.socket(fileno=fds[0])
    warnings.showwarning = partial(_show, hub, warnings.showwarning)
    if body["index"] > 0:
        warnings.simplefilter("ignore", OddlotWarning)  # the first worker sends it
    try:
        Worker(hub, fds[1], fds[2], body["index"]).serve()
    except BaseException as error:  # noqa: BLE001 - the hub must receive any error
        with suppress(OSError):  # if the hub has ended
            hub.send(encode(Say.FAILED, **plain_failure(error)))
        os._exit(1)
