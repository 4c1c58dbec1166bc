"""The port of a peer process: a thread computes and evaluates, and messages are sent to other peers.

Also the timeouts of the thread's work.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from oddlot.core import worker_stats
from oddlot.core.events import Cancelled, Evaluated, LinkTraffic
from oddlot.core.membership import Membership
from oddlot.core.support.errors import OddlotError
from oddlot.core.support.user_code import trace_of, user_code_failed
from oddlot.core.task_timeouts import hung_after
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.engines.host import ReceivedUpdate
from oddlot.engines.local.processes import START_SECONDS
from oddlot.engines.mesh.messages import ModelMessage, PeerMessage, Tensors
from oddlot.engines.mesh.network_faults import NetworkFaults
from oddlot.engines.mesh.transport import Transport
from oddlot.engines.processes.evaluations import hung_evaluation_after
from oddlot.engines.processes.pace import Pace, PacedControl
from oddlot.engines.task_runner import TaskRunner
from oddlot.model.block_pool import BlockSource
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.payload import Payload
from oddlot.train.learner import Learner

START, TASK, EVALUATION = "start", "task", "evaluation"


@dataclass
class HangLimits:
    """The current work of a peer, and its timeout.

    A hub has the same rules for its workers and its evaluator.
    """

    since: float
    """Start time of the current work, in seconds."""
    work: str = START
    """Current work. Empty: none."""
    tasks: int = 0
    """Number of finished tasks."""
    longest_evaluation: float | None = None

    def begin(self, work: str, now: float) -> None:
        """Record the start of work."""
        self.since, self.work = now, work

    def end(self, now: float) -> None:
        """Record the end of the current work."""
        if self.work == EVALUATION:
            self.longest_evaluation = max(self.longest_evaluation or 0.0, now - self.since)
        self.tasks += self.work == TASK
        self.work = ""

    def hung(self, now: float, others: Iterable[float]) -> str:
        """Return the current work if it hangs, else "". `others`: longest steps of other peers; 0 if unknown."""
        work, limit = self.work, float("inf")
        if work == START:
            limit = START_SECONDS
        elif work == EVALUATION:
            limit = hung_evaluation_after(self.longest_evaluation)
        elif work and not self.tasks and (known := [step for step in others if step]):
            usual = worker_stats.TIMEOUT_FACTOR * median(known)
            limit = hung_after(max(worker_stats.SECONDS_UNTIL_KNOWN, usual))
        return work if now - self.since > limit else ""


class Ready:
    """Message that the compute thread is ready for tasks."""


class ComputeThread:
    """A thread that runs the job's code.

    It puts updates, metrics and errors of the job's code into `found`. `report` sends fields to the launcher.
    """

    def __init__(
        self,
        make: Callable[[], Learner],
        pace: Pace,
        blocks: BlockSource,
        found: "queue.SimpleQueue[Any]",
        report: Callable[..., None],
    ) -> None:
        self.control, self.blocks, self.found, self.report = PacedControl(pace), blocks, found, report
        self.hang_limits = HangLimits(time.monotonic())
        self.todo: queue.SimpleQueue[tuple[str, Any, FlatBuffer]] = queue.SimpleQueue()
        self.is_evicted = False
        """Whether the conductor has evicted this worker. The process must then end."""
        self.thread = threading.Thread(target=self._work, args=(make,), daemon=True)
        self.thread.start()

    def start(self, task: Task, weights: FlatBuffer) -> None:
        """Compute a task."""
        self.todo.put((TASK, task, weights))

    def evaluate(self, version: int, weights: FlatBuffer) -> None:
        """Evaluate weights after the current task."""
        self.todo.put((EVALUATION, version, weights))

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Stop a task at its next minibatch."""
        self.control.aborted.add(task)

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """End a task after its current minibatch."""
        self.control.hurried.add(task)

    def evict(self, node: NodeId) -> None:
        """Record that the computation hangs. The process must end, because a thread cannot be killed."""
        self.is_evicted = True

    def loaded(self) -> Iterable[TaskId]:
        """Return an empty tuple: a version is held until its task has ended."""
        return ()

    def hung(self, others: Iterable[float]) -> str:
        """Return the current work if it hangs, else "". `others`: longest steps of other peers; 0 if unknown."""
        return self.hang_limits.hung(time.monotonic(), others)

    def _work(self, make: Callable[[], Learner]) -> None:
        try:
            runner = TaskRunner(make(), None)
            self.hang_limits.end(time.monotonic())
            self.found.put(Ready())
            while True:
                kind, what, weights = self.todo.get()
                self.hang_limits.begin(kind, time.monotonic())
                if kind == TASK:
                    self._task(runner, what, weights)
                else:
                    self.report(evaluating=True)
                    self.found.put(Evaluated(what, runner.evaluate(weights)))
                    self.report(evaluating=False)
                self.hang_limits.end(time.monotonic())
        except OddlotError as error:
            self.found.put(error)
        except BaseException as error:  # noqa: BLE001 - any error of the job's code ends the peer
            self.found.put(user_code_failed("a peer", trace_of(error)))

    def _task(self, runner: TaskRunner, task: Task, weights: FlatBuffer) -> None:
        out = self.blocks.take()
        answer = runner.run(task, weights, out, self.control)
        self.control.aborted.discard(task.id)
        self.control.hurried.discard(task.id)
        if isinstance(answer, Cancelled):
            self.blocks.give(out)
            self.found.put(answer)
            return
        payload = Payload(task.kind, out, partial(self.blocks.give, out))
        self.found.put(ReceivedUpdate(replace(answer, bytes_up=0, bytes_down=0), payload))  # nothing was sent


class ProcessPort(ComputeThread):
    """The port of a peer process: it sends to other peers over TCP, and computes in a thread."""

    def __init__(
        self, transport: Transport, make: Callable[[], Learner], pace: Pace, report: Callable[..., None]
    ) -> None:
        super().__init__(make, pace, transport.blocks, transport.incoming, report)
        self.transport = transport
        self.membership: Membership | None = None
        self.addresses: dict[NodeId, str] = {}
        """Addresses of peers that are not members yet."""
        self.disturbance = NetworkFaults()

    def send(self, peer: NodeId, message: PeerMessage, tensors: Tensors | None = None) -> None:
        """Send a message to a peer, unless an injected fault drops it."""
        if isinstance(message, ModelMessage) and tensors is not None:
            tensors = self.disturbance.disturbed(tensors, lambda late: self._send(peer, message, late))
            if tensors is None:
                return
        self._send(peer, message, tensors)

    def _send(self, peer: NodeId, message: PeerMessage, tensors: Tensors | None) -> None:
        if self.disturbance.is_cut(peer):
            if tensors is not None:
                tensors.release()
            return
        member = self.membership.members.get(peer) if self.membership else None
        address = self.addresses.get(peer, "") if member is None else member.address
        if address:
            self.transport.send(peer, address, message, tensors)
        elif tensors is not None:
            tensors.release()

    def traffic(self) -> Iterable[LinkTraffic]:
        """Return the bytes sent to each peer so far."""
        return [
            LinkTraffic(peer, dict(sent.by_message), sent.by_system or None)
            for peer, sent in self.transport.sent_bytes().items()
        ]

    def know(self, peer: NodeId, address: str) -> None:
        """Record the address of a peer that is not a member yet."""
        self.addresses[peer] = address

    def address_of(self, peer: NodeId) -> str:
        """Return the address of a peer that has sent a message; empty if unknown."""
        return self.transport.addresses.get(peer, "")
