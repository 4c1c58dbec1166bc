"""Fault injection: into the workers of an engine, or into the peers of a mesh and their network."""

import os
import signal
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Protocol

from oddlot.core.events import Cancelled, FaultInjected, Joined, Leaving, Lost, Resumed, UpdateRejected
from oddlot.core.records import Record
from oddlot.core.tasks import NodeId, machine_of
from oddlot.engines.base import Engine, FaultInjection
from oddlot.engines.engine_wrapper import EngineWrapper
from oddlot.engines.host import Message, ReceivedUpdate
from oddlot.faults.plan import ANSWERED, LASTING, Chaos, Fault
from oddlot.faults.schedule import FaultSchedule, PlannedFault, planned_faults


class LastingFaults:
    """Freezes and slows workers. If several faults of a kind overlap, the strongest applies."""

    def __init__(self, faults: FaultInjection) -> None:
        self.faults = faults
        self.active: defaultdict[tuple[str, NodeId], list[tuple[float, float]]] = defaultdict(list)
        """End and factor of each active fault, by kind and worker."""

    def add(self, kind: str, node: NodeId, until: float, factor: float) -> None:
        """Add a fault, and remove faults that end no later and are no stronger."""
        others = (one for one in self.active[kind, node] if one[0] > until or one[1] > factor)
        self.active[kind, node] = [*others, (until, factor)]

    def apply(self, kind: str, node: NodeId, now: float) -> None:
        """Inject the strongest active fault of this kind, or end the fault if no fault of this kind is active."""
        active = [one for one in self.active[kind, node] if one[0] > now]
        self.active[kind, node] = active
        if kind == "slow":
            self.faults.slow(node, max((factor for _, factor in active), default=0.0))
        elif active:
            self.faults.freeze(node)
        else:
            self.faults.thaw(node)


CONTINUED = " (continued)"
"""Suffix of the name of a fault that continues after a resume."""
AT_ONCE: dict[str, Any] = {"at_seconds": (0.0,), "at_versions": (), "every_seconds": None, "per_hour": None}


class Injector(ABC):
    """Injects the faults of a plan into nodes when they are due.

    `targets` returns the nodes that a fault may be injected into. `report` is called with each injected fault. `past`
    is the complete log of a resumed run, and faults in it are not injected again. The random numbers depend on the
    number of `resumes`.
    """

    def __init__(
        self,
        faults: FaultInjection,
        chaos: Chaos,
        clock: Callable[[], float],
        targets: Callable[[PlannedFault], Iterable[NodeId]],
        report: Callable[[FaultInjected], None],
        past: Sequence[Record],
        resumes: int,
    ) -> None:
        self.faults, self.clock, self.targets, self.report = faults, clock, targets, report
        self.schedule = FaultSchedule(clock, self._inject)
        self.lasting = LastingFaults(faults)
        self.waiting: list[PlannedFault] = []
        """Faults that wait for a matching node. Repeated faults do not wait."""
        done = Counter(record.event.fault for record in past if isinstance(record.event, FaultInjected))
        self.planned = planned_faults(chaos, resumes)
        for place, planned in enumerate(self.planned):
            self.schedule.plan(place, planned, done[planned.name])

    @abstractmethod
    def _disturb(self, planned: PlannedFault, node: NodeId) -> None:
        """Delay, drop or corrupt the next message of a node."""

    def _inject(self, planned: PlannedFault) -> None:
        """Inject a fault into a matching node. Without a matching node, let the fault wait unless it is repeated."""
        # Sorted, because the order of joins is not deterministic.
        nodes = sorted(node for node in self.targets(planned) if planned.fault.is_for(node))
        if nodes:
            self._inject_into(planned, nodes)
        elif planned.fault.is_once:
            self.waiting.append(planned)

    def _inject_into(self, planned: PlannedFault, nodes: Sequence[NodeId]) -> None:
        """Inject a fault into one of these nodes at random."""
        node, fault = planned.targets.choice(nodes), planned.fault
        if fault.kind in ANSWERED:
            self._disturb(planned, node)
            return
        self.report(FaultInjected(planned.name, fault.kind, node))
        match fault.kind:
            case "kill":
                self.faults.kill(node)
            case "leave":
                self.faults.leave(node)
            case _:
                until = self._until(fault)
                self.lasting.add(fault.kind, node, until, fault.factor or 0.0)
                self._apply(fault.kind, node)
                if until < inf:
                    self.schedule.at(until, partial(self._apply, fault.kind, node), brings_message=True)

    def _until(self, fault: Fault) -> float:
        """Return the end of a fault that starts now."""
        return inf if fault.for_seconds is None else self.clock() + fault.for_seconds

    def _apply(self, kind: str, node: NodeId) -> None:
        self.lasting.apply(kind, node, self.clock())


class FaultInjector(Injector, EngineWrapper):
    """Wraps an engine, and injects the faults of `chaos` into its workers and messages.

    `version()` returns the model's version. `save()` writes the log to the disk before the hub is killed. After a
    resume, lasting faults continue on the machines of the workers that were running when the hub was lost (`left`).
    """

    def __init__(
        self,
        engine: Engine,
        faults: FaultInjection,
        chaos: Chaos,
        version: Callable[[], int],
        save: Callable[[], None],
        past: Sequence[Record] | None = None,
        left: Collection[NodeId] = (),
    ) -> None:
        log = past or ()
        resumes = sum(isinstance(record.event, Resumed) for record in log) + (past is not None)
        EngineWrapper.__init__(self, engine)
        Injector.__init__(self, faults, chaos, lambda: engine.now, self._targets, self._report, log, resumes)
        self.version, self.save = version, save
        self.workers: dict[NodeId, bool] = {}
        """Whether faults may be injected, by worker. False after a worker was killed or is leaving."""
        self.awaiting_update: list[tuple[PlannedFault, NodeId]] = []
        """Faults for the next update of a worker."""
        self.messages: deque[Message] = deque()
        injected = [(record.now, record.event) for record in log if isinstance(record.event, FaultInjected)]
        for planned in self.planned:
            if planned.fault.kind in LASTING:
                self._continue(planned, injected, left)

    # --- the mailbox ---------------------------------------------------------------------------

    def next(self, until: float) -> Message | None:
        """Return the next message of the engine, possibly changed by a fault, or the event of an injected fault."""
        self.schedule.run_versions(self.version())
        due = self.schedule.next_time
        if not self.messages and due <= self.engine.now:
            self.schedule.run_next()  # may return None, and the run then checks its goal
        elif not self.messages:
            is_over = until == inf and self.engine.is_spent and not self.schedule.pending_messages
            message = self.engine.next(inf if is_over else min(until, due))
            if message is not None:
                self._pass(message)
        return self.messages.popleft() if self.messages else None

    # --- messages ------------------------------------------------------------------------------

    def _pass(self, message: Message) -> None:
        match message:
            case Joined(node):
                self.workers[node] = True
                self._retry_waiting()
            case Leaving(node):
                self.workers[node] = False
            case Lost(node):
                self._lost(node)
            case ReceivedUpdate() if found := next(
                (one for one in self.awaiting_update if one[1] == message.facts.sender), None
            ):
                self.awaiting_update.remove(found)
                self._alter(found[0], message)
                return
        self.messages.append(message)

    def _lost(self, node: NodeId) -> None:
        """Let faults for the next update of a lost worker wait for another worker."""
        self.workers.pop(node, None)
        for planned, _ in [one for one in self.awaiting_update if one[1] == node]:
            self.awaiting_update.remove((planned, node))
            if planned.fault.is_once:
                self.waiting.append(planned)
        self._retry_waiting()

    def _retry_waiting(self) -> None:
        """Schedule waiting faults again, after the present message."""
        waiting, self.waiting = self.waiting, []
        for planned in waiting:
            self.schedule.at(self.now, partial(self._inject, planned))

    def _alter(self, planned: PlannedFault, arrival: ReceivedUpdate) -> None:
        """Delay, drop or corrupt an update."""
        facts = arrival.facts
        self.messages.append(FaultInjected(planned.name, planned.fault.kind, facts.sender))
        match planned.fault:
            case Fault(kind="delay", delay_seconds=seconds):
                arrive = partial(self.messages.append, arrival)
                self.schedule.at(self.now + (seconds or 0.0), arrive, brings_message=True)
            case Fault(kind="drop"):
                if arrival.payload is not None:
                    arrival.payload.release()
                self.messages.append(Cancelled(facts.id, facts.sender))
            case _ if arrival.payload is None:
                self.messages.append(UpdateRejected(facts.id, "it was corrupted by fault injection"))
            case _:
                arrival.payload.corrupt()
                self.messages.append(arrival)

    # --- faults --------------------------------------------------------------------------------

    def _continue(
        self, planned: PlannedFault, past: Sequence[tuple[float, FaultInjected]], left: Collection[NodeId]
    ) -> None:
        """Schedule a fault again that was active when the hub was lost, on the same machines."""
        fault, begun, machines = planned.fault, dict[str, float](), set[str]()
        for time, event in past:
            machine = machine_of(event.node)
            if event.fault == planned.name:
                begun[machine] = time
            if event.fault.removesuffix(CONTINUED) == planned.name and event.node in left:
                machines.add(machine)
        for machine in sorted(machines):
            rest = None if fault.for_seconds is None else begun[machine] + fault.for_seconds - self.now
            if rest is None or rest > 0:
                again = replace(fault, machine=machine, for_seconds=rest, **AT_ONCE)
                continued = replace(planned, name=f"{planned.name}{CONTINUED}", fault=again)
                self.schedule.at(self.now, partial(self._inject, continued))

    def _inject(self, planned: PlannedFault) -> None:
        if planned.fault.kind == "kill_hub":
            self.messages.append(FaultInjected(planned.name, planned.fault.kind, ""))
            self.schedule.at(self.now, self._kill_hub)
        else:
            super()._inject(planned)

    def _targets(self, planned: PlannedFault) -> Iterable[NodeId]:
        chosen = {node for other, node in self.awaiting_update if other is planned}
        return (node for node, can in self.workers.items() if can and node not in chosen)

    def _report(self, injected: FaultInjected) -> None:
        self.messages.append(injected)
        if injected.kind in ("kill", "leave"):
            self.workers[injected.node] = False

    def _disturb(self, planned: PlannedFault, node: NodeId) -> None:
        self.awaiting_update.append((planned, node))  # reported with the update

    def _kill_hub(self) -> None:
        self.save()
        os.kill(os.getpid(), signal.SIGKILL)


class MeshFaultInjection(FaultInjection, Protocol):
    """Fault injection into peers and into messages between them."""

    def disturb(self, node: NodeId, kind: str, seconds: float) -> None:
        """Delay, drop or corrupt the next model that a peer sends."""

    def partition(self, side: Collection[NodeId]) -> None:
        """Cut these peers off from all others. An empty collection ends the partition."""


class MeshFaults(Injector):
    """Injects faults into the peers of a mesh.

    `note` writes an injected fault into the log of a peer. `peers` returns the present peers.
    """

    faults: MeshFaultInjection

    def __init__(
        self,
        faults: MeshFaultInjection,
        chaos: Chaos,
        clock: Callable[[], float],
        note: Callable[[FaultInjected], None],
        peers: Callable[[], list[NodeId]],
        past: Sequence[Record] | None = None,
    ) -> None:
        log = past or ()
        # All peers resume at the same time.
        times = {record.now for record in log if isinstance(record.event, Resumed)}
        super().__init__(faults, chaos, clock, lambda _: peers(), note, log, len(times) + (past is not None))

    def run_due(self, version: int) -> None:
        """Inject all faults that are due now. `version`: number of merges of all peers."""
        waiting, self.waiting = self.waiting, []
        for planned in waiting:
            self._inject(planned)
        self.schedule.run_versions(version)
        while self.schedule.next_time <= self.clock():
            self.schedule.run_next()

    def _disturb(self, planned: PlannedFault, node: NodeId) -> None:
        fault = planned.fault
        self.report(FaultInjected(planned.name, fault.kind, node))
        self.faults.disturb(node, fault.kind, fault.delay_seconds or 0.0)

    def _inject_into(self, planned: PlannedFault, nodes: Sequence[NodeId]) -> None:
        """Inject a fault. A partition cuts off the machine of the fault, or half of all peers."""
        fault = planned.fault
        if fault.kind != "partition":
            super()._inject_into(planned, nodes)
            return
        side = nodes if fault.machine else nodes[: len(nodes) // 2]
        self.report(FaultInjected(planned.name, fault.kind, side[0] if side else ""))
        self.faults.partition(side)
        if (until := self._until(fault)) < inf:
            self.schedule.at(until, lambda: self.faults.partition(()))
