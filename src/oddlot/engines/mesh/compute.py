"""The port of a peer's process: a thread computes its tasks and evaluates, and models are sent to other peers."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from oddlot.core.errors import OddlotError
from oddlot.core.events import Cancelled, Evaluated, LinkTraffic
from oddlot.core.membership import Membership
from oddlot.core.tasks import NodeId, Task, TaskId
from oddlot.core.user_code import trace_of, user_code_failed
from oddlot.engines.host import Arrival
from oddlot.engines.mesh.messages import ModelMessage, PeerMessage, Tensors
from oddlot.engines.mesh.network_faults import NetworkFaults
from oddlot.engines.mesh.patience import EVALUATION, TASK, Patience
from oddlot.engines.mesh.transport import Transport
from oddlot.engines.pace import Pace, PacedControl
from oddlot.engines.task_runner import TaskRunner
from oddlot.train.flat_buffer import FlatBuffer
from oddlot.train.learner import Learner
from oddlot.train.store import BlockSource, Payload


class Ready:
    """The message of a computation that can start."""


class ComputeThread:
    """Runs the job's code in one thread.

    `found` gets updates, metrics, and the error of a job whose code failed. `report` reports to the launcher.
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
        self.patience = Patience(time.monotonic())
        self.todo: queue.SimpleQueue[tuple[str, Any, FlatBuffer]] = queue.SimpleQueue()
        self.is_evicted = False
        """Whether the conductor has given up its computation, so that the process must end."""
        self.thread = threading.Thread(target=self._work, args=(make,), daemon=True)
        self.thread.start()

    def start(self, task: Task, weights: FlatBuffer) -> None:
        """Compute a task."""
        self.todo.put((TASK, task, weights))

    def evaluate(self, version: int, weights: FlatBuffer) -> None:
        """Evaluate weights after the present task."""
        self.todo.put((EVALUATION, version, weights))

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Stop a task at its next minibatch."""
        self.control.aborted.add(task)

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """End a task after its current minibatch."""
        self.control.hurried.add(task)

    def evict(self, node: NodeId) -> None:
        """Note that the computation hangs: the process must end, because a thread cannot be ended."""
        self.is_evicted = True

    def loaded(self) -> Iterable[TaskId]:
        """Return no task: a version is held until its task has ended."""
        return ()

    def hung(self, others: Iterable[float]) -> str:
        """Return the work that hangs, by the longest steps of `others`; empty if none does."""
        return self.patience.hung(time.monotonic(), others)

    def _work(self, make: Callable[[], Learner]) -> None:
        try:
            runner = TaskRunner(make(), None)
            self.patience.end(time.monotonic())
            self.found.put(Ready())
            while True:
                kind, what, weights = self.todo.get()
                self.patience.begin(kind, time.monotonic())
                if kind == TASK:
                    self._task(runner, what, weights)
                else:
                    self.report(evaluating=True)
                    self.found.put(Evaluated(what, runner.evaluate(weights)))
                    self.report(evaluating=False)
                self.patience.end(time.monotonic())
        except OddlotError as error:
            self.found.put(error)
        except BaseException as error:  # noqa: BLE001 - whatever the job's code raises ends the peer
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
        self.found.put(Arrival(replace(answer, bytes_up=0, bytes_down=0), payload))  # nothing was sent


class ProcessPort(ComputeThread):
    """Sends to other peers over TCP, and computes in a thread."""

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
        """Note the address of a peer that is not a member yet."""
        self.addresses[peer] = address

    def address_of(self, peer: NodeId) -> str:
        """Return the address of a peer from which a message came."""
        return self.transport.addresses.get(peer, "")
