"""The simulator, with one event queue and a virtual clock: `SimulatedHub`, and `Simulator` for hubs and meshes.

A task is computed when its update is due, from its start weights. Lost or cancelled tasks are never computed. Runs with
the same seed have the same events.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import partial
from math import inf
from typing import Any, Protocol

from oddlot.core.events import Evaluated, Gone, Leaving, Lost, Priced
from oddlot.core.records import HUB
from oddlot.core.support.event_queue import EventQueue
from oddlot.core.tasks import NodeId, Task, TaskId, TaskLoss
from oddlot.engines.buying_plan import BuyingPlan
from oddlot.engines.host import Envelope, Message, ReceivedUpdate
from oddlot.engines.simulated.compute import DataBytes
from oddlot.engines.simulated.machine_lifecycle import MachineLifecycle
from oddlot.engines.simulated.stall_checks import stalled
from oddlot.engines.simulated.task_execution import TaskExecution
from oddlot.engines.simulated.worker import SimulatedWorker
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Machine
from oddlot.machines.market import Hub, Zone


class Computation(Protocol):
    """Computes the tasks of a simulated run; see `oddlot.engines.simulated.compute`."""

    bytes_down: int
    """Bytes of a task's initial weights."""
    bytes_up: int
    """Bytes of an update."""

    def compute(self, task: Task, weights: Any) -> tuple[TaskLoss, Any]:
        """Return the loss and the payload of a task."""

    def forget(self, node: NodeId) -> None:
        """Drop the state of a lost worker."""

    def evaluate(self, weights: Any) -> dict[str, float]:
        """Return the metrics of weights."""


class Simulator(ABC):
    """Simulated machines, their workers, and the injection of faults into them.

    Each worker sends its messages to a host: the hub, or the peer on the same machine.
    """

    def __init__(
        self,
        machines: Sequence[Machine | Zone],
        computation: Computation,
        batch: int,
        seed: int = 0,
        now: float = 0.0,
        taken: Collection[str] = (),
        hub: Hub = Hub(),  # noqa: B008 - frozen, and without state
        data: DataBytes = DataBytes(),  # noqa: B008 - likewise
        plan: BuyingPlan | None = None,
    ) -> None:
        self.computation, self.batch, self.data = computation, batch, data
        self.events: EventQueue[Envelope] = EventQueue(now)
        self.workers: dict[NodeId, SimulatedWorker] = {}
        if hub.dollars_per_hour:
            self.plan(now, Envelope(HUB, Priced("", hub.dollars_per_hour)))
        self.quiet_since = now
        """Time of the last change, except of prices."""
        self.lifecycle = MachineLifecycle(self.events, machines, self, seed, taken, plan)

    # --- the mailbox ---------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds of virtual time since the run started."""
        return self.events.now

    def next_envelope(self, until: float) -> Envelope | None:
        """Advance the clock to the next message before `until` and return it. Raise JobError if the run has stalled."""
        envelope = self.events.next(until)
        if envelope is None and until == inf:
            raise stalled(self.quiet_since, len(self.workers), self.lifecycle.zones.ended_traces)
        if envelope is None:
            self.events.now = max(self.now, until)  # an alarm that a resumed run has missed is in the past
        elif not isinstance(envelope.message, Priced):
            self.quiet_since = self.now
        return envelope

    @property
    def is_spent(self) -> bool:
        """Whether no event is scheduled."""
        return not self.events.heap

    def plan(self, when: float, envelope: Envelope) -> None:
        """Schedule a message."""
        self.events.at(when, lambda: envelope)

    # --- the port ------------------------------------------------------------------------------

    def start(self, task: Task, weights: Any) -> None:
        """Send the task, with its weights unless the worker has them. A lost worker does not respond."""
        worker = self.workers.get(task.node)
        if worker is None:
            return
        weight_bytes = 0 if worker.version == task.version else self.computation.bytes_down
        worker.version, worker.last_contact = task.version, self.now
        worker.add(task, weights, weight_bytes, self.data.missing(task, worker.shards))

    def abort(self, task: TaskId, node: NodeId) -> None:
        """Ask the worker to stop at its next minibatch, or immediately if its machine does so.

        A task in its last minibatch is finished.
        """
        worker, place = self._find(task, node)
        if worker is None:
            return  # its update is on the way
        worker.queue[place].unwanted = True
        if worker.machine.stops_at_once and worker.frozen_at is None and not worker.is_gone:
            self.plan(self.now, Envelope(worker.host, worker.remove(place).cancelled(self.now)))
            self._end_if_idle(worker)
        else:
            worker.request_stop(place)

    def evict(self, node: NodeId) -> None:
        """Kill the worker's process, and start another process on its machine."""
        self.lifecycle.restart(node)
        self.kill(node)

    def hand_over(self, task: TaskId, node: NodeId) -> None:
        """Ask the worker to end the task after its current minibatch, and to send the finished part."""
        worker, place = self._find(task, node)
        if worker is not None:
            worker.queue[place].min_samples = 1
            worker.request_stop(place)

    def evaluate(self, version: int, weights: Any, host: NodeId = HUB) -> None:
        """Evaluate the weights, in no virtual time."""
        self.events.at(
            self.now, lambda: Envelope(host, Evaluated(version, self.computation.evaluate(weights)))
        )

    def loaded(self) -> tuple[TaskId, ...]:
        """Return no tasks: each reads the host's memory until its virtual end."""
        return ()

    def _find(self, task: TaskId, node: NodeId) -> tuple[SimulatedWorker | None, int]:
        """Return the worker that has the task, and the task's position in its queue, or None if the task has ended."""
        worker = self.workers.get(node)
        place = worker.find(task) if worker else None
        return (None, -1) if place is None else (worker, place)

    # --- workers -------------------------------------------------------------------------------

    @abstractmethod
    def host_of(self, node: NodeId) -> NodeId:
        """Return the host that receives the messages of a worker."""

    def begin(self, node: NodeId, machine: Machine, delay: Times, link_delay: Times) -> None:
        """Add a worker that is ready for tasks."""
        now = self.now
        self.workers[node] = SimulatedWorker(
            node,
            self.host_of(node),
            machine,
            delay,
            link_delay,
            self.events,
            self.batch,
            lambda: self.computation.bytes_up,
            self._answer,
            joined_at=now,
            free_at=now,
            last_contact=now,
        )

    @abstractmethod
    def notice(self, node: NodeId) -> Envelope | None:
        """Give the worker notice of a preemption. Return the message about it, if any."""

    def lose(self, node: NodeId) -> Envelope | None:
        """End the worker. Return the message about it, or None if it had ended before."""
        worker = self.workers.get(node)
        if worker is None or worker.is_gone:
            return None
        if worker.queue:  # otherwise it had no task to complete
            self.lifecycle.progress.worker_lost(node, self.now - worker.joined_at, worker.queue[0].compute)
        worker.stop()
        worker.is_gone = True
        self.lifecycle.ended(node)
        return self._lost(worker)

    @abstractmethod
    def _lost(self, worker: SimulatedWorker) -> Envelope:
        """Return the message about a worker that has ended."""

    def _forget(self, worker: SimulatedWorker) -> None:
        """Remove a worker after its loss is detected. Updates in transit are too late."""
        for execution in worker.queue:
            execution.unwanted = True
        del self.workers[worker.node]
        self.computation.forget(worker.node)
        self.lifecycle.loss_noticed(worker.node)

    def _end_if_idle(self, worker: SimulatedWorker) -> None:
        """End a leaving worker once all of its tasks have ended."""
        if worker.is_leaving and not worker.queue:
            self.kill(worker.node)

    def _answer(self, worker: SimulatedWorker, execution: TaskExecution) -> Envelope:
        """Return the message about the end of a task: an update, or `Cancelled`."""
        self._end_if_idle(worker)
        if not execution.has_update:
            return Envelope(worker.host, execution.cancelled(self.now))
        self.lifecycle.task_completed(execution.seconds_before + execution.end - execution.begin)
        # The worker needs its own new weights in any case.
        moves_on = execution.task.pull is not None and worker.node in self.workers
        loss, payload = TaskLoss(), None
        if moves_on or not execution.unwanted:
            loss, payload = self.computation.compute(execution.computed_task, execution.weights)
        facts = execution.facts(self.now, worker.machine.link, loss, self.computation.bytes_up)
        return Envelope(worker.host, ReceivedUpdate(facts, payload))

    # --- fault injection -----------------------------------------------------------------------

    def kill(self, node: NodeId) -> None:
        """Lose the machine now. It returns as after a preemption."""
        self.events.at(self.now, partial(self.lose, node))

    def leave(self, node: NodeId) -> None:
        """Give the worker notice that its machine is reclaimed."""
        self.events.at(self.now, partial(self.notice, node))

    def slow(self, node: NodeId, factor: float) -> None:
        """Slow the worker down. This also affects its current task."""
        if (worker := self.workers.get(node)) is not None:
            worker.slow(factor)

    def freeze(self, node: NodeId) -> None:
        """Suspend the worker."""
        worker = self.workers.get(node)
        if worker is not None and worker.frozen_at is None:
            worker.freeze()

    def thaw(self, node: NodeId) -> None:
        """Let a frozen worker continue."""
        worker = self.workers.get(node)
        if worker is not None and worker.frozen_at is not None:
            worker.thaw(worker.frozen_at)
            self._thawed(worker)

    @abstractmethod
    def _thawed(self, worker: SimulatedWorker) -> None:
        """Deliver messages to a worker that came while it was frozen."""

    def bar(self, machine: str, barred: bool) -> None:
        """Make a machine unavailable, or available again. A machine that is starting is cancelled."""
        if not barred:
            self.events.at(self.now, partial(self.lifecycle.unbar, machine))
        elif (envelope := self.lifecycle.bar(machine)) is not None:
            self.plan(self.now, envelope)


class SimulatedHub(Simulator):
    """The engine of simulated machines. The hub is the host of all workers."""

    def next(self, until: float) -> Message | None:
        """Return the hub's next message before `until`."""
        envelope = self.next_envelope(until)
        return None if envelope is None else envelope.message

    def host_of(self, node: NodeId) -> NodeId:
        """Return the hub."""
        return HUB

    def notice(self, node: NodeId) -> Envelope | None:
        """Let the worker stop at its next minibatch, send the finished parts, and leave."""
        worker = self.workers.get(node)
        if worker is None or worker.is_leaving or worker.is_gone:
            return None
        if worker.frozen_at is not None:
            worker.has_pending_notice = True
            return None
        worker.is_leaving = True
        worker.request_stops()
        self._end_if_idle(worker)
        return Envelope(HUB, Leaving(node))

    def _lost(self, worker: SimulatedWorker) -> Envelope:
        """Let the hub detect the loss immediately, or after `noticed_after_seconds` without a message."""
        noticed_at = max(self.now, worker.last_contact + worker.machine.noticed_after_seconds)
        if not worker.is_leaving and noticed_at > self.now:
            self.events.at(noticed_at, partial(self._notice_loss, worker))
            return Envelope(HUB, Gone(worker.node))
        return self._notice_loss(worker)

    def _notice_loss(self, worker: SimulatedWorker) -> Envelope:
        self._forget(worker)
        return Envelope(HUB, Lost(worker.node))

    def _thawed(self, worker: SimulatedWorker) -> None:
        if worker.has_pending_notice:
            self.leave(worker.node)
