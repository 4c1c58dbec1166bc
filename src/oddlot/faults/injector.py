"""Injection of the faults of a plan into any engine."""

import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from oddlot.core.events import Cancelled, Joined, Leaving, Lost, Refused, Struck
from oddlot.core.tasks import NodeId, machine_of
from oddlot.engines.base import Engine, FaultInjection
from oddlot.engines.engine_wrapper import EngineWrapper
from oddlot.engines.host import Arrival, Message
from oddlot.faults.lasting import LastingFaults
from oddlot.faults.plan import ANSWERED, LASTING, Chaos, Fault
from oddlot.faults.schedule import FaultSchedule, PlannedFault, planned_faults

CONTINUED = " (continued)"
"""Suffix of the name of a fault that continues after the hub was lost."""
AT_ONCE: dict[str, Any] = {"at_seconds": (0.0,), "at_versions": (), "every_seconds": None, "per_hour": None}


class FaultInjector(EngineWrapper):
    """Wraps an engine and injects the faults of `chaos`.

    `version()` returns the model's version. `save()` writes the log to the disk before the hub is killed. `past` has
    the faults before a resume, with their times. They are not injected again, but lasting faults continue on the
    machines of the workers that were `left` when the hub was lost. The random numbers depend on the number of
    `resumes`.
    """

    def __init__(
        self,
        engine: Engine,
        faults: FaultInjection,
        chaos: Chaos,
        version: Callable[[], int],
        save: Callable[[], None],
        past: Sequence[tuple[float, Struck]] = (),
        left: Collection[NodeId] = (),
        resumes: int = 0,
    ) -> None:
        super().__init__(engine)
        self.faults = faults
        self.version, self.save = version, save
        self.schedule = FaultSchedule(lambda: self.now, self._inject)
        self.lasting = LastingFaults(faults)
        self.targets: dict[NodeId, bool] = {}
        """The workers, and whether each is a possible target. Killed and leaving workers are not."""
        self.waiting: list[PlannedFault] = []
        """Faults that wait for a worker. Repeated faults do not wait."""
        self.awaiting_update: list[tuple[PlannedFault, NodeId]] = []
        """Faults that change the next update of a worker."""
        self.messages: deque[Message] = deque()
        done = Counter(event.fault for _, event in past)
        for place, planned in enumerate(planned_faults(chaos, resumes)):
            self.schedule.plan(place, planned, done[planned.name])
            if planned.fault.kind in LASTING:
                self._continue(planned, past, left)

    # --- the mailbox ---------------------------------------------------------------------------

    def next(self, until: float) -> Message | None:
        """Return the engine's next message, changed by faults, or the event of an injected fault."""
        self.schedule.run_versions(self.version())
        due = self.schedule.next_time
        if not self.messages and due <= self.engine.now:
            self.schedule.run_next()  # the run then checks whether it is over
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
                self.targets[node] = True
                self._retry_waiting()
            case Leaving(node):
                self.targets[node] = False
            case Lost(node):
                self._lost(node)
            case Arrival() if found := next(
                (one for one in self.awaiting_update if one[1] == message.facts.sender), None
            ):
                self.awaiting_update.remove(found)
                self._alter(found[0], message)
                return
        self.messages.append(message)

    def _lost(self, node: NodeId) -> None:
        """Remove a worker. Faults of its next update wait for another worker."""
        self.targets.pop(node, None)
        for planned, _ in [one for one in self.awaiting_update if one[1] == node]:
            self.awaiting_update.remove((planned, node))
            if planned.fault.is_once:
                self.waiting.append(planned)
        self._retry_waiting()

    def _retry_waiting(self) -> None:
        """Try to inject the waiting faults again, after the current message."""
        waiting, self.waiting = self.waiting, []
        for planned in waiting:
            self.schedule.at(self.now, partial(self._inject, planned))

    def _alter(self, planned: PlannedFault, arrival: Arrival) -> None:
        """Delay, drop or corrupt an update."""
        facts = arrival.facts
        self.messages.append(Struck(planned.name, planned.fault.kind, facts.sender))
        match planned.fault:
            case Fault(kind="delay", delay_seconds=seconds):
                arrive = partial(self.messages.append, arrival)
                self.schedule.at(self.now + (seconds or 0.0), arrive, brings_message=True)
            case Fault(kind="drop"):
                if arrival.payload is not None:
                    arrival.payload.release()
                self.messages.append(Cancelled(facts.id, facts.sender))
            case _ if arrival.payload is None:
                self.messages.append(Refused(facts.id, "it was corrupted by fault injection"))
            case _:
                arrival.payload.corrupt()
                self.messages.append(arrival)

    # --- faults --------------------------------------------------------------------------------

    def _continue(
        self, planned: PlannedFault, past: Sequence[tuple[float, Struck]], left: Collection[NodeId]
    ) -> None:
        """Continue faults that had not ended when the hub was lost, in the next workers of the same machines."""
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
        """Inject a fault into a matching worker, or let it wait for one."""
        fault = planned.fault
        if fault.kind == "kill_hub":
            self.messages.append(Struck(planned.name, fault.kind, ""))
            self.schedule.at(self.now, self._kill_hub)
            return
        chosen = {node for other, node in self.awaiting_update if other is planned}
        # Sorted, because the order of joining is not deterministic.
        nodes = sorted(n for n, can in self.targets.items() if can and fault.is_for(n) and n not in chosen)
        if not nodes:
            if fault.is_once:
                self.waiting.append(planned)
            return
        node = planned.targets.choice(nodes)
        if fault.kind in ANSWERED:
            self.awaiting_update.append((planned, node))  # reported with the update
            return
        self.messages.append(Struck(planned.name, fault.kind, node))
        self._inject_into(node, fault)

    def _inject_into(self, node: NodeId, fault: Fault) -> None:
        match fault.kind:
            case "kill":
                self.targets[node] = False
                self.faults.kill(node)
            case "leave":
                self.targets[node] = False
                self.faults.leave(node)
            case _:
                until = inf if fault.for_seconds is None else self.now + fault.for_seconds
                self.lasting.add(fault.kind, node, until, fault.factor or 0.0)
                self._apply(fault.kind, node)
                if until < inf:
                    self.schedule.at(until, partial(self._apply, fault.kind, node), brings_message=True)

    def _apply(self, kind: str, node: NodeId) -> None:
        self.lasting.apply(kind, node, self.now)

    def _kill_hub(self) -> None:
        self.save()
        os.kill(os.getpid(), signal.SIGKILL)
