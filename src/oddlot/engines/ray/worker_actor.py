"""The actor of a worker on a Ray cluster, its messages to and from the hub, and checks of its environment.

All of the job's code runs in one thread. Two threads of Ray pass tasks to it, and put finished updates into the object
store while the next task is computed. Methods of the concurrency group `control` run in other threads. The hub's side
is in `oddlot.engines.ray.actor_pool`.
"""

import os
import platform
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
import torch

from oddlot.core.events import Cancelled
from oddlot.core.support.errors import JobError, OddlotWarning, UsageError
from oddlot.core.support.user_code import chain_of, enter_worker
from oddlot.core.tasks import Facts, Task, TaskId
from oddlot.core.version import __version__
from oddlot.engines.processes.memory_allocator import keep_memory
from oddlot.engines.processes.node_ids import EVALUATOR
from oddlot.engines.processes.object_parcel import tensor_of, unpickled
from oddlot.engines.processes.pace import Pace, PacedControl
from oddlot.engines.processes.process_setup import WorkerSetup, loading_learner_of
from oddlot.engines.processes.user_code_error import plain_failure
from oddlot.engines.ray.node_functions import end_of
from oddlot.engines.ray.object_chunks import Bytes, joined, pieces_of, private
from oddlot.engines.task_runner import TaskRunner
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.train.devices import choose_device
from oddlot.wire.packet import Packet

Result = TypeVar("Result")
Beat = Literal["alive", "leaving", "node_lost"]
"""A heartbeat. `node_lost`: the raylet has ended, and updates can no longer be sent."""
CONTROL = "control"
"""Name of the concurrency group for methods that are called while a task is computed."""
CONTROL_THREADS, TASK_THREADS = 4, 2
PARENT_SECONDS = 0.25
"""Interval between a worker's checks that its node's raylet is running, in seconds."""


@dataclass(frozen=True)
class HubInfo:
    """Versions and folders of the hub's process. A worker needs them before it can read its setup."""

    versions: Mapping[str, str]
    path: Sequence[str]
    """Search path for modules."""
    folder: str
    """Current folder of the hub, for relative paths."""

    @classmethod
    def here(cls) -> "HubInfo":
        """Return the versions and folders of this process."""
        folder = str(Path.cwd())
        return cls(versions(), [path or folder for path in sys.path], folder)


@dataclass(frozen=True)
class Started:
    """The process, node and machine of a worker."""

    pid: int
    ray_node: str
    """Ray's id of its node."""
    address: str
    """IP address of its node."""
    host: str
    """Identifier of its machine and process namespace. Processes with the same identifier can send it signals."""
    files: Sequence[str]
    """Files with its output."""


@dataclass(frozen=True)
class Failure:
    """An exception in a worker, and the end of its output."""

    error: dict[str, Any]
    log: bytes


Answer = Facts | Cancelled | Failure


class WorkerActor(PacedControl):
    """A worker, or the evaluator: the `Control` of the tasks that it executes."""

    def __init__(self, name: str) -> None:
        keep_memory()
        super().__init__()
        self.name, self.parent = name, os.getppid()
        self.thread = ThreadPoolExecutor(1)
        """The thread for the job's code, because some settings of PyTorch are per thread."""
        self.outs = threading.local()
        """The update buffer of each of Ray's threads. The thread's next task reuses it."""
        self.news = threading.Event()
        """Set when the next heartbeat must be sent immediately."""
        signal.signal(signal.SIGTERM, lambda *_: self.leave())
        note_exits()
        enter_worker()

    def __repr__(self) -> str:  # Ray prefixes each line of output with it
        return self.name

    def where(self) -> Started:
        """Return the process, node and machine of this worker."""
        return Started(os.getpid(), *_ray_node(), host(), _output_files())

    def begin(self, hub: HubInfo, is_first: bool, parts: Sequence[Bytes]) -> Started | Failure:
        """Prepare the job from the pickled `WorkerSetup` in `parts`. Only the first worker shows warnings."""
        return self.thread.submit(_answer, self._begin, hub, is_first, parts).result()

    def compute(self, task: Task, weights: Sequence[Bytes]) -> tuple[Answer, list[Bytes]]:
        """Compute a task. Return its facts, and its update in pieces: the buffer, or the packet of a codec."""
        if not hasattr(self.outs, "block"):
            self.outs.block = FlatBuffer.empty(self.setup.layout)
        out: FlatBuffer = self.outs.block
        done = self.thread.submit(_answer, self._compute, task, weights, out).result()
        if isinstance(done, Failure):
            return done, []
        answer, packet = done
        update = out.memory.numpy() if packet is None else packet
        return answer, pieces_of(update) if isinstance(answer, Facts) else []

    def evaluate(self, weights: Sequence[Bytes]) -> dict[str, float] | Failure:
        """Return the metrics of these weights."""
        return self.thread.submit(_answer, self._evaluate, weights).result()

    def _begin(self, hub: HubInfo, is_first: bool, parts: Sequence[Bytes]) -> Started:
        check_versions(hub.versions, versions(), self.name)
        if not is_first:
            warnings.simplefilter("ignore", OddlotWarning)  # the first worker shows it
        sys.path += [path for path in hub.path if path not in sys.path and Path(path).exists()]
        if not _has_working_dir():
            enter(hub.folder)
        self.parts = parts  # holds the setup's arrays until they are written to
        setup = _unpickled([parts[0], *map(private, parts[1:])], self.name)
        setup.process.apply(setup.job)
        self.setup, self.pace = setup, Pace(None, setup.seed, setup.job.batch_size)
        learner = loading_learner_of(setup, self._device(setup.job.device))
        self.runner = TaskRunner(learner, setup.encoder)
        return self.where()

    def _device(self, wish: str) -> torch.device:
        """Return the first device that Ray assigns to this actor. The evaluator falls back to the CPU."""
        try:
            return choose_device(wish)
        except UsageError:
            if self.name != EVALUATOR:
                raise
            return torch.device("cpu")

    def _compute(
        self, task: Task, weights: Sequence[Bytes], out: FlatBuffer
    ) -> tuple[Facts | Cancelled, Bytes | None]:
        self.sent: Bytes | None = None
        answer = self.runner.run(task, FlatBuffer(self.setup.layout, tensor_of(joined(weights))), out, self)
        self.aborted.discard(task.id)
        self.hurried.discard(task.id)
        return answer, self.sent

    def _evaluate(self, weights: Sequence[Bytes]) -> dict[str, float]:
        return self.runner.evaluate(FlatBuffer(self.setup.layout, tensor_of(joined(weights))))

    # --- called while a task is computed -------------------------------------------------------

    def beat(self, seconds: float) -> Beat:
        """Return a heartbeat after `seconds`, or earlier after a preemption notice or the end of the raylet."""
        until = time.monotonic() + seconds
        while not self.news.wait(max(0.0, min(PARENT_SECONDS, until - time.monotonic()))):
            if os.getppid() != self.parent:
                return "node_lost"
            if time.monotonic() >= until:
                return "alive"
        self.news.clear()
        return "leaving"

    def leave(self) -> None:
        """Handle a preemption notice: start no further minibatch, and send finished parts."""
        if not self.leaving:
            self.leaving = True
            self.news.set()

    def abort(self, task: TaskId) -> None:
        """Stop a task before its next minibatch."""
        self.aborted.add(task)

    def hand_over(self, task: TaskId) -> None:
        """End a task after its current minibatch, and send the finished part."""
        self.hurried.add(task)

    def slow(self, factor: float) -> None:
        """Wait after each step for `factor` times its duration."""
        self.pace.slowness = factor

    # --- the control of a task -----------------------------------------------------------------

    def deliver(self, packet: Packet) -> int:
        """Keep the packet until the task ends. Return its size in bytes."""
        self.sent = np.empty(packet.size, np.uint8)
        return packet.write(self.sent)


def _unpickled(parts: Sequence[Bytes], node: str) -> WorkerSetup:
    """Return the setup. Raise JobError if a module is missing here."""
    try:
        setup: WorkerSetup = unpickled(parts)
    except ModuleNotFoundError as error:
        message = (
            f"{node} on {socket.gethostname()} has no module {error.name}: install it on all nodes, or send your own "
            'modules with runtime_env={"working_dir": "."}'
        )
        raise JobError(message, "module_missing", node=node, module=error.name) from None
    return setup


def enter(folder: str) -> None:
    """Change to the hub's current folder if this machine has it, so that relative paths name the same files."""
    with suppress(OSError):
        os.chdir(folder)


def note_exits() -> None:
    """Make `os._exit` write the exit code to this process's output. Ray does not report it, and the hub looks there."""
    own, leave = os.getpid(), os._exit

    def noted(status: int) -> NoReturn:
        if os.getpid() == own:  # not in a forked child
            with suppress(OSError):
                os.write(2, f"oddlot: os._exit({status})\n".encode())
        leave(status)

    os._exit = noted


def versions() -> dict[str, str]:
    """Return the versions that must be equal on all machines."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"Python": python, "PyTorch": torch.__version__.partition("+")[0], "oddlot": __version__}


def check_versions(hub: Mapping[str, str], here: Mapping[str, str], node: str) -> None:
    """Raise JobError if a worker's versions differ from the hub's."""
    different = {name: (hub[name], here[name]) for name in hub if hub[name] != here[name]}
    if different:
        both = ", ".join(
            f"{name} {theirs} (the hub has {ours})" for name, (ours, theirs) in different.items()
        )
        message = f"{node} on {socket.gethostname()} runs {both}: install the same versions on all nodes"
        raise JobError(message, "version_mismatch", node=node, different=different)


def host() -> str:
    """Return an identifier of this machine and its process namespace."""
    if sys.platform != "linux":
        return socket.gethostname()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {Path('/proc/self/ns/pid').readlink()}"


def _ray_node() -> tuple[str, str]:
    """Return Ray's id of this node, and its IP address."""
    import ray

    return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()


def _has_working_dir() -> bool:
    """Return whether Ray has set this worker's current folder to a copy of `working_dir`."""
    import ray

    return "working_dir" in ray.get_runtime_context().runtime_env


def _output_files() -> list[str]:
    from oddlot.engines.ray.private_api import output_files

    return output_files()


def _answer(function: Callable[..., Result], *arguments: Any) -> Result | Failure:
    """Return the result of a function, or a `Failure` for the hub if it raises an exception."""
    try:
        return function(*arguments)
    except BaseException as error:  # noqa: BLE001 - users' code may raise anything
        sys.stdout.flush()
        sys.stderr.flush()
        failure = plain_failure(error)
        failure["text"] += missing_here_advice(error)
        return Failure(failure, end_of(_output_files()))


def missing_here_advice(error: BaseException) -> str:
    """Return advice for errors about files with a relative path and environment variables that this machine lacks."""
    for each in chain_of(error):
        name = each.filename if isinstance(each, FileNotFoundError) else None
        if isinstance(name, str) and not Path(name).is_absolute():
            return (
                f"\nThe worker looked for {name} in {Path.cwd()} on {socket.gethostname()}: use an absolute path that "
                'all nodes have, or send the folder with runtime_env={"working_dir": "."}'
            )
        if isinstance(each, KeyError) and _is_of_environment(each):
            name = str(each.args[0])
            return (
                f"\nThe environment variable {name} is not set on {socket.gethostname()}: set it on all nodes, or send "
                f'it with runtime_env={{"env_vars": {{"{name}": "..."}}}}'
            )
    return ""


def _is_of_environment(error: KeyError) -> bool:
    """Return whether `os.environ[...]` raised the error."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is type(os.environ).__getitem__.__code__
