"""Processes that load minibatches for a worker."""

import mmap
import os
import signal
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe, connection, reduction
from typing import Any, NoReturn

import numpy as np
import torch

from oddlot.core.support.errors import JobError, OddlotError, OddlotWarning, UsageError
from oddlot.core.support.user_code import trace_of
from oddlot.core.support.user_warnings import warn
from oddlot.data.batches import NOT_READING, Cuts, cuts_of
from oddlot.data.load_ahead import AHEAD, LoadAhead, Loader
from oddlot.data.sample_order import Minibatch
from oddlot.data.seeded_fetch import SeededFetch
from oddlot.engines.local.orphans import die_with_parent
from oddlot.engines.local.shared_memory import anonymous_file
from oddlot.engines.processes.object_parcel import pickled, unpickled
from oddlot.engines.processes.user_code_error import failure_of, plain_failure
from oddlot.train.learner import Learner
from oddlot.train.sample_failures import LoadingFailed, named_rows

INLINE_BYTES = 1 << 15
"""Largest minibatch that is sent through the pipe. Larger ones are sent as shared memory."""
WAIT_SECONDS = 1.0
"""Interval of the checks for ended processes, while a minibatch is awaited."""
KILLS = 3
"""Number of processes that SIGKILL or SIGTERM ends while they load the same minibatch, until the run fails."""


def load_ahead(learner: Learner, shards: Cuts = 1) -> None:
    """Let a learner load its next minibatches in processes. `shards`: shards of the ledger.

    The processes are forked at the first task, and end with this process. Arrays, and parts with arrays, are read
    without processes: their minibatches are slices.
    """
    job = learner.job

    def loader_of(fetch: SeededFetch) -> Loader:
        if fetch.batches.is_plain:
            return fetch
        pool = LoadingProcesses(job.load_workers, fetch, job.load_worker_init)
        cuts, seed = cuts_of(learner.samples, shards), learner.seed
        return LoadAhead(pool, learner.order, cuts, seed, job.batch_size, job.micro_batch_size)

    learner.use_loaders(loader_of)


@dataclass(slots=True, eq=False)
class _Process:
    """A loading process, as its worker sees it."""

    pid: int
    pipe: Any
    pending: deque[int] = field(default_factory=deque)
    """Numbers of the requests without a reply, in their order."""


class LoadingProcesses:
    """Forked processes that load minibatches. They share the memory of the dataset until they write to it."""

    def __init__(self, count: int, fetch: SeededFetch, start: Callable[[int], None] | None = None) -> None:
        self.count, self.fetch, self.start = count, fetch, start
        self.depth = AHEAD * count
        self.processes: list[_Process] = []
        self.requests: dict[int, Minibatch] = {}
        """Requests that are not dropped and have no reply."""
        self.done: dict[int, Any] = {}
        self.kills: Counter[tuple[bytes, ...]] = Counter()
        self.reading = np.frombuffer(mmap.mmap(-1, 8 * count), np.int64)
        """Index of the sample that each process reads."""

    def request(self, number: int, minibatch: Minibatch) -> None:
        """Load a minibatch."""
        if not self.processes:
            self.processes = [self._fork(slot) for slot in range(self.count)]
        self.requests[number] = minibatch
        self._send(self._chosen(minibatch), number)

    def drop(self, numbers: Collection[int]) -> None:
        """Drop requests. A process finishes the minibatch that it is loading."""
        for number in numbers:
            self.requests.pop(number, None)
            self.done.pop(number, None)
        for process in self.processes:
            if here := [number for number in numbers if number in process.pending]:
                with suppress(OSError):  # it has ended, which `result` will notice
                    process.pipe.send(("drop", here))

    def result(self, number: int) -> Any:
        """Wait for a minibatch. Raise LoadingFailed or JobError if it cannot be loaded."""
        while number not in self.done:
            pipes = {process.pipe: process for process in self.processes}
            ready = connection.wait([*pipes], WAIT_SECONDS)
            for pipe in ready:
                self._receive(pipes[pipe])
            if not ready:
                self._check_ended()
        kind, value, reading = self.done.pop(number)
        if kind == "batch":
            return value
        if kind == "failure":
            raise failure_of("", value)
        self.fetch.batches.reading = None if reading == NOT_READING else reading
        raise LoadingFailed(value)

    def close(self) -> None:
        """End the processes. They finish the minibatches that they are loading."""
        for process in self.processes:
            process.pipe.close()
        for process in self.processes:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, 0)
        self.processes = []

    def _chosen(self, minibatch: Minibatch) -> _Process:
        """Return the process for a minibatch: for data in parts always the same, so that it opens a part only once."""
        shards = self.fetch.batches.shards
        if shards is not None:
            return self.processes[shards.number_of(int(minibatch.indices[0])) % self.count]
        return min(self.processes, key=lambda process: len(process.pending))

    def _send(self, process: _Process, number: int) -> None:
        process.pending.append(number)
        with suppress(OSError):  # it has ended, which `result` will notice
            process.pipe.send(("load", number, self.requests[number]))

    def _receive(self, process: _Process) -> None:
        try:
            number, sizes, parts = process.pipe.recv()
            if sizes and parts is None:
                parts = _mapped(reduction.recv_handle(process.pipe), sizes)
        except (EOFError, OSError, RuntimeError):
            self._ended(process)
            return
        process.pending.remove(number)
        if number in self.requests:
            del self.requests[number]
            self.done[number] = unpickled(parts)

    def _check_ended(self) -> None:
        """Replace or report processes that have ended while a process of their own holds their pipe open."""
        for process in self.processes:
            try:
                pid, status = os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:  # reaped by other code of this process
                self._ended(process)
                return
            if pid:
                self._ended(process, status)
                return

    def _ended(self, process: _Process, status: int | None = None) -> None:
        """Replace a process that was killed from outside. Raise JobError if it ended by itself."""
        if status is None:
            with suppress(ChildProcessError):
                _, status = os.waitpid(process.pid, 0)
        code = None if status is None else os.waitstatus_to_exitcode(status)
        process.pipe.close()
        slot = self.processes.index(process)
        reading = int(self.reading[slot])
        first = next((self.requests[one] for one in process.pending if one in self.requests), None)
        if first is not None:
            self.kills[first.key] += 1
        if code not in {-signal.SIGKILL, -signal.SIGTERM} or (first and self.kills[first.key] >= KILLS):
            raise self._error(process.pid, code, reading, first)
        warn(
            f"a process that loads data was killed by {signal.Signals(-code).name}, and is replaced. It may be out of "
            "memory: use fewer load_workers",
            "loading_process_killed",
            signal=signal.Signals(-code).name,
        )
        self.processes[slot] = self._fork(slot)
        for number in process.pending:
            if number in self.requests:
                self._send(self.processes[slot], number)

    def _error(self, pid: int, code: int | None, reading: int, minibatch: Minibatch | None) -> JobError:
        rows = [reading] if reading != NOT_READING else []
        if not rows and minibatch is not None:
            rows = sorted(set(minibatch.indices.tolist()))
        how = "ended" if code is None else f"exited with code {code}"
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        return JobError(
            f"process {pid}, which loads data for a worker, {how} while it read "
            f"{self.fetch.batches.setting}[{named_rows(rows)}]. See its output above. With load_workers=0, the worker "
            "reads the samples itself",
            "loading_process_ended",
            pid=pid,
            exit_code=code,
            rows=rows,
        )

    def _fork(self, slot: int) -> _Process:
        ours, theirs = Pipe()
        parent = os.getpid()
        self.reading[slot] = NOT_READING
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child uses none of theirs
            pid = os.fork()
        if pid == 0:
            try:
                for other in (ours, *(process.pipe for process in self.processes)):
                    other.close()
                _Child(theirs, slot, self).serve(parent)
            finally:
                os._exit(1)
        theirs.close()
        return _Process(pid, ours)


class _Child:
    """The program of a loading process."""

    def __init__(self, pipe: Any, slot: int, pool: LoadingProcesses) -> None:
        self.pipe, self.slot, self.pool, self.fetch = pipe, slot, pool, pool.fetch
        self.batches = pool.fetch.batches
        self.waiting: deque[tuple[int, Minibatch]] = deque()
        self.failed: tuple[str, Any, int] | None = None
        """Reply to all requests, if the process could not start."""

    def serve(self, parent: int) -> NoReturn:
        """Load minibatches until the worker ends."""
        die_with_parent(parent)
        if hasattr(signal, "set_wakeup_fd"):
            with suppress(ValueError):  # not in the main thread
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_IGN)  # sent to a group: the worker handles them
        warnings.simplefilter("ignore", OddlotWarning)  # the worker shows them
        torch.set_num_threads(1)
        torch.set_default_device("cpu")
        self.batches.mark = self.pool.reading[self.slot : self.slot + 1]
        self.failed = self._tried(self._start)
        if self.failed[0] == "batch":
            self.failed = None
        while True:
            try:
                while not self.waiting or self.pipe.poll():
                    self._read()
                self._reply()
            except (EOFError, OSError):
                os._exit(0)

    def _start(self) -> None:
        """Set PyTorch's information about loading processes, and call the user's function."""
        from torch.utils.data._utils import worker

        # Iterables divide their samples by it, but a process reads complete parts.
        if self.batches.shards is None:
            information: Any = worker.WorkerInfo  # its arguments are its attributes
            worker._worker_info = information(
                id=self.slot,
                num_workers=self.pool.count,
                seed=torch.initial_seed(),
                dataset=self.batches.data,
            )
        if self.pool.start is not None:
            self.pool.start(self.slot)

    def _read(self) -> None:
        match self.pipe.recv():
            case "load", number, minibatch:
                self.waiting.append((number, minibatch))
            case "drop", numbers:
                for number, minibatch in list(self.waiting):
                    if number in numbers:
                        self.waiting.remove((number, minibatch))
                        self.pipe.send((number, [], []))

    def _reply(self) -> None:
        number, minibatch = self.waiting.popleft()
        done = self.failed or self._tried(lambda: self.fetch(minibatch))
        try:
            parts = pickled(done)
        except UsageError as error:
            code, fields = "batch_not_pickled", error.fields
            message = (
                f"a minibatch cannot be sent from a loading process, because of {fields['attribute'] or 'a value'} "
                f"({fields['reason']}): return tensors from the dataset and collate, or use load_workers=0"
            )
            parts = pickled(("failure", plain_failure(JobError(message, code, **fields)), NOT_READING))
        self.batches.reading = None
        sys.stdout.flush()
        sizes = [len(part) for part in parts]
        if sum(sizes) <= INLINE_BYTES:
            self.pipe.send((number, sizes, [bytes(part) for part in parts]))
            return
        fd = _written(parts)
        try:
            self.pipe.send((number, sizes, None))
            reduction.send_handle(self.pipe, fd, os.getppid())
        finally:
            os.close(fd)

    def _tried(self, function: Callable[[], Any]) -> tuple[str, Any, int]:
        """Return the kind and value of the reply, and the sample that was being read."""
        try:
            return "batch", function(), NOT_READING
        except OddlotError as error:
            return "failure", plain_failure(error), NOT_READING
        except (Exception, SystemExit) as error:  # noqa: BLE001 - users' code may raise anything
            reading = self.batches.reading
            return "error", trace_of(error), NOT_READING if reading is None else reading


def _written(parts: Sequence[memoryview]) -> int:
    """Return the descriptor of an anonymous file with these parts."""
    fd = anonymous_file(_places([len(part) for part in parts])[-1])
    with os.fdopen(os.dup(fd), "wb") as file:
        for part, place in zip(parts, _places([len(part) for part in parts]), strict=False):
            file.seek(place)
            file.write(part)
    return fd


def _mapped(fd: int, sizes: Sequence[int]) -> list[memoryview]:
    """Return the parts in an anonymous file, and close its descriptor."""
    places = _places(sizes)
    memory = memoryview(mmap.mmap(fd, max(1, places[-1])))
    os.close(fd)
    return [memory[place : place + size] for place, size in zip(places, sizes, strict=False)]


def _places(sizes: Sequence[int]) -> list[int]:
    """Return the start of each part at a multiple of 64 bytes, and the end of the file."""
    places = [0]
    for size in sizes:
        places.append(-(-(places[-1] + size) // 64) * 64)
    return places
