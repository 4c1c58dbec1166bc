"""The Ray engine at the hub: `RayEngine`, its `Evaluator`, and fault injection with `RayFaults`."""

import signal
import time
from collections.abc import Collection, Sequence
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from oddlot.core.events import Cancelled, Evaluated, UpdateRejected
from oddlot.core.support.errors import JobError
from oddlot.core.support.user_warnings import warn
from oddlot.core.tasks import Facts, NodeId, Task, TaskId
from oddlot.engines.buying_plan import BuyingPlan
from oddlot.engines.host import Message, ReceivedUpdate
from oddlot.engines.payloads import decode_into
from oddlot.engines.processes.node_ids import EVALUATOR, NodeIds
from oddlot.engines.processes.object_parcel import pickled, tensor_of
from oddlot.engines.processes.process_setup import WorkerSetup
from oddlot.engines.processes.respawn import EVALUATOR_INDEX
from oddlot.engines.ray.actor_pool import ActorPool
from oddlot.engines.ray.cluster import put
from oddlot.engines.ray.handles import ActorHandle, OpenTask, Published
from oddlot.engines.ray.head_watch import HeadWatch
from oddlot.engines.ray.object_chunks import Bytes, joined
from oddlot.engines.ray.purchasing import Purchasing
from oddlot.engines.ray.started_actors import StartedActors
from oddlot.engines.ray.worker_actor import Answer, Failure
from oddlot.engines.ray.worker_logs import WorkerLogs
from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.payload import Payload
from oddlot.wire.framing import FrameError
from oddlot.wire.packet import Packet

if TYPE_CHECKING:
    from oddlot.engines.ray.actor_pool import ActorPool


class RayFaults:
    """Injects faults by signals to the workers' processes, on any machine."""

    def __init__(self, actors: "ActorPool") -> None:
        self.actors = actors

    def kill(self, node: NodeId) -> None:
        """Send SIGKILL to the worker."""
        if worker := self.actors.running.get(node):
            worker.killed = True
            self.actors.signal(worker, signal.SIGKILL)

    def freeze(self, node: NodeId) -> None:
        """Send SIGSTOP to the worker."""
        self._send(node, signal.SIGSTOP)

    def thaw(self, node: NodeId) -> None:
        """Send SIGCONT to the worker."""
        self._send(node, signal.SIGCONT)

    def leave(self, node: NodeId) -> None:
        """Send SIGTERM to the worker."""
        self._send(node, signal.SIGTERM)

    def slow(self, node: NodeId, factor: float) -> None:
        """Slow the worker down from its next minibatch on."""
        self.actors.control(node, "slow", factor)

    def bar(self, machine: str, barred: bool) -> None:
        """Suspend the replacement of the machine's worker, or allow it again."""
        self.actors.bar(self.actors.ids.names.index(machine), barred)

    def _send(self, node: NodeId, number: signal.Signals) -> None:
        if worker := self.actors.running.get(node):
            self.actors.signal(worker, number)


class Evaluator:
    """Sends versions to the evaluator process. Starts the process if necessary, and replaces it if it ends or hangs."""

    def __init__(self, actors: ActorPool) -> None:
        self.actors, self.evaluations = actors, actors.evaluations
        actors.evaluator_ready = self._ask_all

    def evaluate(self, version: int, published: Published) -> None:
        """Request the metrics of published weights."""
        self.evaluations.requested[version] = published
        worker = self.actors.running.get(EVALUATOR)
        if worker is None:
            self.actors.spawn(EVALUATOR_INDEX)
        elif worker.ready:
            self._ask(worker, version)

    def check(self) -> None:
        """Kill the evaluator if it hangs."""
        worker = self.actors.running.get(EVALUATOR)
        if worker is not None and self.actors.clock() >= self.evaluations.deadline:
            warn("the evaluator does not respond and was killed. Another one takes over", "evaluator_hung")
            worker.taken_away = True
            self.actors.lose(worker)

    def _ask_all(self) -> None:
        """Request all pending evaluations."""
        for version in self.evaluations.requested:
            self._ask(self.actors.running[EVALUATOR], version)

    def _ask(self, worker: ActorHandle, version: int) -> None:
        weights = self.evaluations.requested[version].ref
        self.actors.call(worker, partial(self._evaluated, worker, version), worker.actor.evaluate, weights)
        self.evaluations.sent(self.actors.clock())

    def _evaluated(self, worker: ActorHandle, version: int, metrics: Any) -> None:
        if isinstance(metrics, Failure):
            self.actors.fail(worker, metrics)
        self.actors.policy.metrics_came()
        self.evaluations.done(version, self.actors.clock())
        self.actors.messages.append(Evaluated(version, metrics))


CHECK_SECONDS = 0.25
"""Longest wait for a message, and interval of checks for silent workers and due replacements, in seconds."""


class RayEngine:
    """Mailbox and port of the workers of a Ray cluster.

    Each version of the weights is put into the object store once, and updates return through it. Workers of one node
    share one copy of a version. Workers and the hub read the store without copying. The clock starts at `now` seconds.
    Workers do not get the ids in `taken`. With a `plan`, on-demand workers are bought.
    """

    def __init__(
        self,
        started: StartedActors,
        setup: WorkerSetup,
        now: float = 0.0,
        taken: Collection[NodeId] = (),
        plan: BuyingPlan | None = None,
    ) -> None:
        self._began = time.monotonic() - now
        self.setup = setup
        parcel = put([np.frombuffer(part, np.uint8) for part in pickled(setup)])
        ids = NodeIds([*started.settings.names, *started.settings.on_demand_names], taken)
        self.actors = ActorPool(started, ids, parcel, WorkerLogs(setup.logs), lambda: self.now)
        self.faults = RayFaults(self.actors)
        self.head = HeadWatch(self.actors.kill)
        self.evaluator = Evaluator(self.actors)
        self.purchasing = Purchasing(plan, self.actors) if plan else None
        self._published: WeakValueDictionary[tuple[int, int], Published] = WeakValueDictionary()
        """Weights in the object store, by version and address: a version's moving average is another block."""
        self._newest: Published | None = None
        self._loaded: list[TaskId] = []
        self._checked = self.now
        for index in range(started.settings.max_workers):
            self.actors.spawn(index)
        if setup.job.eval_data is not None:
            self.actors.spawn(EVALUATOR_INDEX)

    # --- the mailbox ---------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the run started."""
        return time.monotonic() - self._began

    @property
    def is_spent(self) -> bool:
        """Always False: `next` raises JobError if no message can arrive."""
        return False

    def next(self, until: float) -> Message | None:
        """Return the next message, or None after `CHECK_SECONDS` or at the time `until`.

        Raise JobError if all workers are lost and none is replaced, and ClusterLost if the cluster is lost.
        """
        self.head.check()
        messages = self.actors.messages
        if not messages:
            self._look(until)
        if not messages and self._is_deserted:
            message = "all workers were lost, and Ray(respawn=False) does not replace them"
            raise JobError(message, "no_workers_left")
        return messages.popleft() if messages else None

    def _look(self, until: float) -> None:
        """Wait for results of calls, handle them, and run the checks that are due."""
        due = min(until, self.actors.policy.next_at) - self.now
        try:
            news = self.actors.news.get(timeout=min(max(due, 0.0), CHECK_SECONDS))
            self.head.check()  # first: the results may report losses that this explains
            self.actors.hear(news)
            while not self.actors.news.empty():
                self.actors.hear(self.actors.news.get_nowait())
        except Empty:
            pass
        if self.now - self._checked >= CHECK_SECONDS or self.actors.policy.next_at <= self.now:
            self._checked = self.now
            self.actors.check()
            self.evaluator.check()
            if self.purchasing is not None:
                self.purchasing.decide()

    @property
    def _is_deserted(self) -> bool:
        """Whether no worker is running or will be started, and no evaluation is pending."""
        workers = self.actors.running.keys() - {EVALUATOR}
        return not (self.actors.policy.replaces or self.actors.evaluations.requested or workers)

    def _answered(self, worker: ActorHandle, task: TaskId, result: tuple[Answer, Sequence[Bytes]]) -> None:
        """Handle the result of a task."""
        answer, pieces = result
        _, start, sent = worker.tasks.pop(task)
        if self.purchasing is not None:
            self.purchasing.progress.task_ended(self.now - sent)
        if isinstance(answer, Failure):
            self.actors.fail(worker, answer)
        elif isinstance(answer, Cancelled):
            self.actors.messages.append(answer)
        else:
            self.actors.policy.update_came()
            worker.productive = True
            self.actors.messages.append(self._arrival(answer, pieces, start))
        self.actors.dismiss(worker)

    def _arrival(self, facts: Facts, pieces: Sequence[Bytes], start: FlatBuffer) -> Message:
        """Return the message about an update. Its tensors stay in the object store unless they were encoded."""
        layout, codec, update = self.setup.layout, self.setup.encoder, joined(pieces)
        if codec is None:
            return ReceivedUpdate(facts, Payload(facts.kind, FlatBuffer(layout, tensor_of(update))))
        flat = FlatBuffer.empty(layout)
        try:
            decode_into(flat, codec, Packet.read(update), facts.kind, start)
        except FrameError as error:
            return UpdateRejected(facts.id, str(error))
        return ReceivedUpdate(facts, Payload(facts.kind, flat))

    # --- the port ------------------------------------------------------------------------------

    def start(self, task: Task, weights: Any) -> None:
        """Send the task to the worker. The worker reads a copy of the weights in the object store."""
        worker = self.actors.running.get(task.node)
        if worker is None or self.head.raylet_ended:
            return  # it has just died: `Lost` is pending, or `next` raises
        published = self._publish(task.version, weights)
        worker.tasks[task.id] = OpenTask(published, weights, self.now)
        answered = partial(self._answered, worker, task.id)
        self.actors.call(worker, answered, worker.actor.compute, task, published.ref)
        if task.kind != "weights":  # the hub keeps the start version of such updates, to compare them
            self._loaded.append(task.id)

    def _publish(self, version: int, weights: FlatBuffer) -> Published:
        """Return weights of a version in the object store, after putting them there if necessary."""
        key = version, weights.memory.data_ptr()
        published = self._published.get(key)
        if published is None:
            published = self._published[key] = self._newest = Published(weights)
        return published

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Ask the worker to stop the task before its next minibatch."""
        self.actors.control(node, "abort", task)

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """Ask the worker to end the task after its current minibatch."""
        self.actors.control(node, "hand_over", task)

    def evict(self, node: NodeId) -> None:
        """Kill the worker and replace it."""
        self.actors.take_away(node)

    def evaluate(self, version: int, weights: Any) -> None:
        """Request the metrics of a version from the evaluator, an actor on the hub's node."""
        if not self.head.raylet_ended:
            self.evaluator.evaluate(version, self._publish(version, weights))

    def loaded(self) -> Collection[TaskId]:
        """Return the tasks sent since the last call. They do not need the hub's copy of their weights."""
        loaded, self._loaded = self._loaded, []
        return loaded

    def close(self) -> None:
        """Kill all actors."""
        self.head.close()
        if self.purchasing is not None:
            self.purchasing.close()
        self.actors.close()
