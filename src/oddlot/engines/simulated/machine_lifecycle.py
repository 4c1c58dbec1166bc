"""The lifecycle of simulated machines: ordered, started, preempted, replaced."""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Protocol

from oddlot.core.events import Gone, Joined, Ordered
from oddlot.core.support.event_queue import EventQueue
from oddlot.core.tasks import NodeId, machine_of, worker_name
from oddlot.engines.buying_plan import BuyingPlan
from oddlot.engines.host import Envelope
from oddlot.engines.simulated.purchasing import Purchasing, substitutes
from oddlot.engines.simulated.stall_checks import StallChecks
from oddlot.engines.simulated.zones import MachineState, Zones
from oddlot.machines.delay_models import Times
from oddlot.machines.machine import Machine
from oddlot.machines.market import Zone, all_machines


class Workers(Protocol):
    """The workers on the machines."""

    def host_of(self, node: NodeId) -> NodeId:
        """Return the host that receives the messages about a worker."""

    def begin(self, node: NodeId, machine: Machine, delay: Times, link_delay: Times) -> None:
        """Add a worker that is ready for tasks."""

    def notice(self, node: NodeId) -> Envelope | None:
        """Let the worker send its finished parts and leave."""

    def lose(self, node: NodeId) -> Envelope | None:
        """End the worker."""


class MachineLifecycle:
    """Orders, starts, preempts and replaces the machines of a fleet under a virtual clock."""

    def __init__(
        self,
        events: EventQueue[Envelope],
        fleet: Sequence[Machine | Zone],
        workers: Workers,
        seed: int,
        taken: Collection[str],
        plan: BuyingPlan | None = None,
    ) -> None:
        self.events, self.workers, self.taken = events, workers, taken
        machines = all_machines([*fleet, *substitutes(fleet, plan)])
        self.states = {machine.name: MachineState.of(machine, seed) for machine in machines}
        self.restarts = set[NodeId]()
        """Workers that end while their machine keeps running."""
        self.progress = StallChecks(len(self.states))
        self.purchasing = (
            Purchasing(plan, fleet, self.states, events, self.order, self.give_back) if plan else None
        )
        self.zones = Zones(events, self.order, self.reclaim, seed, self._changing)
        for one in fleet:
            if isinstance(one, Zone):
                self.zones.open(one, [self.states[name] for name in one.names])
            else:
                events.at(max(events.now, one.joins_at_seconds), partial(self.order, self.states[one.name]))
        if self.purchasing is not None:
            self.purchasing.decide_regularly()

    # --- reports of the simulator --------------------------------------------------------------

    def ended(self, node: NodeId) -> None:
        """Record that the worker has ended. The hub may detect it later."""
        self._changing()
        state = self.states[machine_of(node)]
        state.node, state.is_ready = "", False

    def task_completed(self, seconds: float) -> None:
        """Record that a worker has computed a task."""
        self.progress.task_completed()
        if self.purchasing is not None:
            self.purchasing.progress.task_ended(seconds)

    def loss_noticed(self, node: NodeId) -> None:
        """Order the machine again if possible, after the hub has detected the loss of its worker."""
        state = self.states[machine_of(node)]
        pause = 0.0 if node in self.restarts else state.machine.seconds_to_return
        self.restarts.discard(node)
        if pause is not None:
            self.events.at(self.events.now + pause, partial(self.order, state))
        elif state.is_barred:
            state.is_owed = True  # ordered again by `unbar`

    def restart(self, node: NodeId) -> None:
        """Start another worker on the same machine when this worker ends."""
        self.restarts.add(node)

    def bar(self, machine: str) -> Envelope | None:
        """Make the machine unavailable once its worker has ended. A machine that is starting is cancelled."""
        state = self.states[machine]
        state.is_barred = True
        if state.is_ready or not state.node:
            return None
        state.is_owed = True
        return self._give_up_start(state)

    def unbar(self, machine: str) -> Envelope | None:
        """Make the machine available again."""
        state = self.states[machine]
        state.is_barred = False
        return self.order(state) if state.is_owed else None

    # --- machines ------------------------------------------------------------------------------

    def order(self, state: MachineState) -> Envelope | None:
        """Order the machine if possible. It is ready after `seconds_to_start`."""
        state.is_owed = state.is_barred
        self.progress.barred_orders += state.has_capacity and state.is_barred
        self.progress.check_order(is_first=not state.workers)
        if not state.has_capacity or state.is_barred or state.node or not state.is_wanted:
            return None
        state.workers += 1
        while (node := worker_name(state.machine.name, state.workers)) in self.taken:
            state.workers += 1
        state.node = node
        starting = state.machine.seconds_to_start
        if not starting:
            return self._join(state, node)
        self.events.at(self.events.now + starting, partial(self._join, state, node))
        return Envelope(self.workers.host_of(node), Ordered(node, state.price, state.machine.zone))

    def reclaim(self, state: MachineState) -> Envelope | None:
        """Preempt the machine, even while it is starting."""
        if state.is_ready:
            return self._preempt(state.node, state.machine)
        return self._give_up_start(state) if state.node else None

    def give_back(self, state: MachineState) -> Envelope | None:
        """Return a machine that is no longer needed. Its worker hands over the finished part of its task."""
        if state.is_ready:
            return self.workers.notice(state.node)
        return self._give_up_start(state) if state.node else None

    def _join(self, state: MachineState, node: NodeId) -> Envelope | None:
        """Start the worker, unless its machine was cancelled while starting."""
        if state.node != node:
            return None
        self._changing()
        state.is_ready = True
        self.progress.joined()
        self.workers.begin(node, state.machine, state.delay, state.link_delay)
        if state.lifetime is not None:
            self.events.at(self.events.now + state.lifetime(), partial(self._preempt, node, state.machine))
        return Envelope(self.workers.host_of(node), Joined(node, state.price, state.machine.zone))

    def _changing(self) -> None:
        """Report that a machine becomes ready or ends."""
        if self.purchasing is not None:
            self.purchasing.changing()

    def _preempt(self, node: NodeId, machine: Machine) -> Envelope | None:
        """Preempt the machine, after a notice if it has one."""
        if not machine.notice_seconds:
            return self.workers.lose(node)
        self.events.at(self.events.now + machine.notice_seconds, lambda: self.workers.lose(node))
        return self.workers.notice(node)

    def _give_up_start(self, state: MachineState) -> Envelope:
        """Preempt a machine before it is ready."""
        node, state.node = state.node, ""
        self.progress.start_lost(node, state.machine.seconds_to_start)
        return Envelope(self.workers.host_of(node), Gone(node))
