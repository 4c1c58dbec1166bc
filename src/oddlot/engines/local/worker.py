"""A worker process: takes a task, computes it into its block of shared memory, says so."""

import gc
import json
import os
import signal
import socket
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

import torch

from oddlot.core.errors import OddlotError, OddlotWarning, short
from oddlot.core.random_streams import stream
from oddlot.core.serialization import from_plain, to_plain
from oddlot.core.spans import minibatch_cuts, samples_in
from oddlot.core.tasks import Facts, Task
from oddlot.core.user_code import shortened, trace_of
from oddlot.engines.local.messages import LONGEST_BYTES, Say, decode, encode
from oddlot.engines.local.orphans import die_with_parent, lead_group
from oddlot.engines.local.shared_memory import Arena, open_parcel
from oddlot.engines.payloads import encoded
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Machine
from oddlot.train.data import Cuts
from oddlot.train.evaluation import evaluate
from oddlot.train.flat_buffer import FlatBuffer, Layout
from oddlot.train.job import Job, choose_device
from oddlot.train.learner import Learner
from oddlot.wire.codec import Codec

HEAD_BYTES = 1_000
"""of a message, beside an error's text and fields"""


@dataclass(frozen=True)
class Setup:
    """All that a worker needs to know, sent once."""

    job: Job
    layout: Layout
    constants: Mapping[str, torch.Tensor]
    """what no block holds"""
    codec: Codec | None
    seed: int
    shards: Cuts
    keep_shards: bool
    threads: int
    default_dtype: torch.dtype
    default_device: torch.device
    """PyTorch's, as the hub's process has set them"""
    machines: tuple[Machine, ...]
    """that the workers take as long as; none: each is as fast as it can"""
    blocks: int
    block_bytes: int
    spin_seconds: float
    """how long to look for a message before sleeping: waking up takes longer than a small step's merge"""


class Worker:
    """One life of a worker, from its setup to the end of its socket."""

    def __init__(self, hub: socket.socket, arena_fd: int, parcel_fd: int, index: int) -> None:
        self.hub = hub
        self.backlog: deque[tuple[Say, dict[str, Any]]] = deque()
        self.aborted: set[str] = set()
        self.hurried: set[str] = set()
        """tasks of which what is done is to be handed over"""
        self.leaving = False
        self.slowness = 0.0
        """how many times a step's own time to wait after it"""
        self.step_began = 0.0
        self.machine: Machine | None = None
        self.delay: Times | None = None
        self.pace = 0.0
        """seconds that a sample of this task takes at least"""
        self.done = 0
        """samples of it that have taken their time"""
        self.cuts: Iterator[int] = iter(())
        """samples before the task's minibatches that are to come"""
        setup: Setup = open_parcel(parcel_fd)
        _begin_process(setup)
        self.setup = setup
        self.machine = setup.machines[index] if setup.machines else None
        self.arena = Arena(setup.blocks, setup.block_bytes, arena_fd)
        self.flats: dict[int, FlatBuffer] = {}
        device = choose_device(setup.job.device, index)
        self.learner = Learner(
            setup.job,
            setup.layout,
            setup.constants,
            setup.seed,
            setup.shards,
            device,
            time.perf_counter,
            setup.keep_shards,
        )
        self.scratch = FlatBuffer.empty(setup.layout) if setup.codec else None

    def flat(self, block: int) -> FlatBuffer:
        """The block of shared memory with this number."""
        if block not in self.flats:
            self.flats[block] = FlatBuffer(
                self.setup.layout, self.arena.block(block)[: self.setup.layout.bytes]
            )
        return self.flats[block]

    def serve(self) -> NoReturn:
        """Answer until the hub closes the socket; after SIGTERM it does so once all is handed over."""
        signal.signal(signal.SIGTERM, self._leave)
        gc.freeze()  # PyTorch and the job stay: looking through them for garbage takes 80 ms in the midst of a step
        self.hub.send(encode(Say.READY))
        while True:
            kind, body = self.backlog.popleft() if self.backlog else self._wait()
            if kind is Say.TASK:
                self._task(from_plain(Task, body["task"]), body["weights"], body["out"])
            elif kind is Say.SLOW:
                self.slowness = float(body["factor"])
            elif kind is Say.EVALUATE:
                metrics = evaluate(self.setup.job, self.learner, self.flat(body["weights"]))
                self.hub.send(encode(Say.EVALUATED, version=body["version"], metrics=metrics))

    def _leave(self, *_: object) -> None:
        """The machine is wanted back: no minibatch is begun any more, and what is done is handed over."""
        if not self.leaving:
            self.leaving = True
            with suppress(OSError):  # nobody is left to tell
                self.hub.send(encode(Say.LEAVING))

    def _task(self, task: Task, weights: int, out: int) -> None:
        if task.kind != "gradient" and (self.setup.job.local_optimizer or self.setup.job.sparse):
            # As PyTorch's optimizers do at their first use, in the midst of a task.
            import_module("torch._dynamo")
        received = time.perf_counter()
        size = self.learner.load(task.version, self.flat(weights))
        if task.kind == "gradient" and not self.setup.layout.has_buffers:
            self.arena.marks[out] = 1  # the learner computes on a copy: the version may change now
        loaded = time.perf_counter()
        target = self.scratch or self.flat(out)
        self._pretend(task, loaded)
        work = self.learner.step(self.flat(weights), task, target, stop=lambda: self._stopped(task.id))
        self._drag(work.samples if work else self.done)
        aborted = task.id in self.aborted
        waiting = {body["task"]["id"] for kind, body in self.backlog if kind is Say.TASK}
        self.aborted &= waiting
        self.hurried &= waiting
        if work is None or (aborted and work.samples < samples_in(task.spans)):
            data = work.bytes_data if work else 0
            self.hub.send(encode(Say.CANCELLED, task=task.id, bytes_down=size, bytes_data=data))
            return
        computed = time.perf_counter()
        sent = self._encode(out, task, self.flat(weights))
        seconds = {
            "down": loaded - received,
            "load": work.load_seconds,
            "compute": computed - loaded - work.load_seconds,
            "up": time.perf_counter() - computed,
        }
        facts = Facts(
            task.id,
            task.node,
            task.version,
            work.samples,
            task.kind,
            work.loss,
            seconds,
            size,
            sent,
            work.bytes_data,
        )
        self.hub.send(encode(Say.DONE, facts=to_plain(facts)))

    def _encode(self, out: int, task: Task, start: FlatBuffer) -> int:
        """The size of the update; behind a codec, its packet is put into the block."""
        if self.scratch is None or self.setup.codec is None:
            return self.setup.layout.bytes
        packet = encoded(self.scratch, self.setup.codec, task.kind, start)
        return packet.write(self.arena.block(out).numpy())

    def _stopped(self, task: str) -> bool:
        """Look for words from the hub without waiting, unless the worker is slow on purpose."""
        self._drag(next(self.cuts))
        while True:
            try:
                kind, body = self._receive(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return self.leaving or task in self.aborted or (self.done > 0 and task in self.hurried)
            if kind is Say.ABORT:
                self.aborted.add(body["task"])
            elif kind is Say.HAND_OVER:
                self.hurried.add(body["task"])
            elif kind is Say.SLOW:
                self.slowness = float(body["factor"])
            else:
                self.backlog.append((kind, body))

    def _pretend(self, task: Task, now: float) -> None:
        """The task begins, which takes as long as it would on the machine."""
        self.step_began, self.done = now, 0
        self.cuts = iter(minibatch_cuts(samples_in(task.spans), self.setup.job.batch))
        if self.machine:
            self.delay = self.delay or self.machine.delay.start(stream(self.setup.seed, f"delay {task.node}"))
            self.pace = self.machine.seconds_per_sample * self.delay()

    def _drag(self, samples: int) -> None:
        """Wait until the samples since the last call have taken their time, which is longer by the slowness: the
        machine's time, or else what the step took itself."""
        taken = time.perf_counter() - self.step_began
        lasts = self.pace * (samples - self.done) if self.machine else taken
        if (wait := lasts * (1.0 + self.slowness) - taken) > 0:
            time.sleep(wait)
        self.step_began, self.done = time.perf_counter(), samples

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


def _begin_process(setup: Setup) -> None:
    """Set PyTorch up as the hub's process has it, and call the job's `worker_init`."""
    torch.set_num_threads(setup.threads)
    torch.set_default_dtype(setup.default_dtype)
    if setup.default_device != torch.get_default_device():
        torch.set_default_device(setup.default_device)
    if setup.job.worker_init is not None:
        setup.job.worker_init()


def main(fds: list[int], body: dict[str, Any], parent: int) -> NoReturn:
    """The whole life of a forked worker. A user's exception goes to the hub with its traceback."""
    die_with_parent(parent)
    lead_group(os.getpid())
    for number in (signal.SIGINT, signal.SIGTTOU):  # of a terminal whose group it is not in, it may print
        signal.signal(number, signal.SIG_IGN)
    hub = socket.socket(fileno=fds[0])
    if body["index"] > 0:
        warnings.simplefilter("ignore", OddlotWarning)  # the first worker gives it
    try:
        Worker(hub, fds[1], fds[2], body["index"]).serve()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the hub must hear of it
        with suppress(OSError):  # if nobody is left to tell
            hub.send(failed(error))
        os._exit(1)


def failed(error: BaseException) -> bytes:
    """What the hub hears of it: of an error of ours also its code, and those of its fields that have room."""
    if not isinstance(error, OddlotError):
        return encode(Say.FAILED, text=trace_of(error))
    text, fields = shortened(str(error)), dict[str, Any]()
    room = LONGEST_BYTES - HEAD_BYTES - len(json.dumps(text))
    for name, value in error.fields.items():
        with suppress(Exception):  # of a user's object that cannot be shown
            plain = json.dumps(value, default=short, skipkeys=True)
            if len(json.dumps(fields)) + len(plain) <= room:
                fields[name] = json.loads(plain)
    return encode(Say.FAILED, text=text, code=error.code, fields=fields)
