"""Injects the faults of a plan into a mesh, where there is no hub: from beside it, into peers and their network."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import inf
from typing import Protocol

from oddlot.core.events import Resumed, Struck
from oddlot.core.records import Record
from oddlot.core.tasks import NodeId
from oddlot.engines.base import FaultInjection
from oddlot.faults.lasting import LastingFaults
from oddlot.faults.plan import ANSWERED, Chaos
from oddlot.faults.schedule import FaultSchedule, PlannedFault, planned_faults


class MeshFaultInjection(FaultInjection, Protocol):
    """Injection of faults into peers and into messages between them."""

    def disturb(self, node: NodeId, kind: str, seconds: float) -> None:
        """Delay, drop or corrupt the next model that a peer sends."""

    def partition(self, side: Collection[NodeId]) -> None:
        """Cut these peers off from all others; no peers: the network is whole again."""


class MeshFaults:
    """The faults of a plan, and when they are due.

    `note` writes an injected fault into the log of a peer. `past` is the log of a resumed run, whose faults are not
    injected again.
    """

    def __init__(
        self,
        chaos: Chaos,
        faults: MeshFaultInjection,
        note: Callable[[Struck], None],
        clock: Callable[[], float],
        peers: Callable[[], list[NodeId]],
        past: Sequence[Record] | None = None,
    ) -> None:
        self.faults, self.note, self.clock, self.peers = faults, note, clock, peers
        self.schedule = FaultSchedule(clock, self._inject)
        self.lasting = LastingFaults(faults)
        self.waiting: list[PlannedFault] = []
        """Faults that wait for a peer that they are for."""
        log = past or ()
        done = Counter(record.event.fault for record in log if isinstance(record.event, Struck))
        resumes = len({record.now for record in log if isinstance(record.event, Resumed)}) + (
            past is not None
        )
        for place, planned in enumerate(planned_faults(chaos, resumes)):
            self.schedule.plan(place, planned, done[planned.name])

    @property
    def next_time(self) -> float:
        """Return when the next fault is due."""
        return self.schedule.next_time

    def run_due(self, version: int) -> None:
        """Inject all faults that are due now, at this number of merges of all peers together."""
        waiting, self.waiting = self.waiting, []
        for planned in waiting:
            self._inject(planned)
        self.schedule.run_versions(version)
        while self.schedule.next_time <= self.clock():
            self.schedule.run_next()

    def _inject(self, planned: PlannedFault) -> None:
        fault = planned.fault
        nodes = sorted(node for node in self.peers() if fault.is_for(node))
        if not nodes:
            if fault.is_once:
                self.waiting.append(planned)
            return
        if fault.kind == "partition":
            self._partition(planned, nodes)
            return
        node = planned.targets.choice(nodes)
        self.note(Struck(planned.name, fault.kind, node))
        if fault.kind in ANSWERED:
            self.faults.disturb(node, fault.kind, fault.delay_seconds or 0.0)
        elif fault.kind == "kill":
            self.faults.kill(node)
        elif fault.kind == "leave":
            self.faults.leave(node)
        else:
            until = self._until(planned)
            self.lasting.add(fault.kind, node, until, fault.factor or 0.0)
            self._apply(fault.kind, node)
            if until < inf:
                self.schedule.at(until, partial(self._apply, fault.kind, node))

    def _partition(self, planned: PlannedFault, nodes: list[NodeId]) -> None:
        """Cut one machine off, or the first half of all peers."""
        side = nodes if planned.fault.machine else nodes[: len(nodes) // 2]
        self.note(Struck(planned.name, "partition", side[0] if side else ""))
        self.faults.partition(side)
        if (until := self._until(planned)) < inf:
            self.schedule.at(until, lambda: self.faults.partition(()))

    def _until(self, planned: PlannedFault) -> float:
        seconds = planned.fault.for_seconds
        return inf if seconds is None else self.clock() + seconds

    def _apply(self, kind: str, node: NodeId) -> None:
        self.lasting.apply(kind, node, self.clock())
