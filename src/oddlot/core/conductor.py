"""The conductor: bookkeeping of workers, tasks, samples and versions.

A conductor receives events with their times, asks the strategy for commands, and returns actions. It does no I/O, has
no tensors and reads no clock: the same history gives the same actions.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop
from math import inf
from random import Random
from typing import Any, get_type_hints

from oddlot.core import events
from oddlot.core.commands import Abort, Action, Drop, Evict, Release, Skip
from oddlot.core.conductor_commands import carry_out, possible
from oddlot.core.peers import Peers
from oddlot.core.records import ECHO, Record
from oddlot.core.sample_ledger import SampleLedger, Skipped
from oddlot.core.segments import start_segment
from oddlot.core.strategy import Strategy, View
from oddlot.core.support.errors import ProtocolError
from oddlot.core.support.random_streams import stream
from oddlot.core.support.serialization import Misfit, from_plain, to_plain
from oddlot.core.task_timeouts import TaskTimeouts
from oddlot.core.tasks import Facts, NodeId, Task, TaskId, UpdateId, node_of
from oddlot.core.worker_stats import WorkerStats


@dataclass(eq=False)
class Conductor:
    """Tracks the state of a run and turns a strategy's commands into actions.

    `in_flight` is the number of open tasks per worker. 2 hides the network latency.
    """

    strategy: Strategy
    ledger: SampleLedger
    batch: int = 32
    in_flight: int = 1
    seed: int = 0
    scheduled: bool = False
    """Whether the job has a learning rate schedule: steps then carry the number of samples merged before."""
    now: float = 0.0
    version: int = 0
    worker_stats: WorkerStats = field(default_factory=WorkerStats)
    slots: dict[NodeId, int] = field(default_factory=dict)
    """Free slots of every worker that can be assigned tasks."""
    idle: dict[NodeId, None] = field(default_factory=dict)
    """Workers with at least one free slot."""
    busy: dict[NodeId, dict[TaskId, float]] = field(default_factory=dict)
    """Tasks of every worker, with their start times. Includes cancelled and timed-out tasks until they are
    acknowledged."""
    stalled: dict[NodeId, None] = field(default_factory=dict)
    """Workers whose only tasks were cancelled or timed out."""
    open: dict[TaskId, Task] = field(default_factory=dict)
    inbox: dict[UpdateId, Facts] = field(default_factory=dict)
    """Updates that are neither merged nor dropped yet."""
    kept: dict[str, int] = field(default_factory=dict)
    """Kept versions, and how often each is kept."""
    alarms: list[float] = field(default_factory=list)
    timeouts: TaskTimeouts = field(default_factory=TaskTimeouts)
    held: dict[TaskId, Task] = field(default_factory=dict)
    """Tasks that workers have not finished or acknowledged, open or not."""
    tasks_made: int = 0
    peers: Peers = field(default_factory=Peers)
    least_slots: int = 1
    """Smallest number of slots of all workers together. With fewer, all workers wait, since their merges would have too
    few updates to compare."""
    waiting: dict[NodeId, events.Joined] = field(default_factory=dict)
    """Workers that wait for others, in the order of their joining. To the strategy they do not exist."""

    def __post_init__(self) -> None:
        # Peers of a mesh have the same seed, but must draw different numbers.
        self.rng: Random = stream(self.seed, f"strategy {self.peers.me}".rstrip())

    @property
    def alarm(self) -> float:
        """Return the time of the next alarm or timeout, when `Ticked` is due. Infinity without alarms and timeouts."""
        return min(self.alarms[0] if self.alarms else inf, self.timeouts.first)

    @property
    def done(self) -> bool:
        """Return whether every sample of every requested epoch is merged or skipped."""
        return self.ledger.done

    def expects(self, task: TaskId) -> bool:
        """Return whether an update of this task would count; otherwise it is an echo."""
        return task in self.open and task in self.ledger.leases

    def staleness(self, version: int) -> int:
        """Return the number of merges since a version."""
        return self.version - version

    def handle(self, event: events.Stimulus, now: float) -> Record:
        """Update the state with an event, ask the strategy, and return the record with all actions."""
        self.now = now
        settled = list(_SETTLE[type(event)](self, event))
        shown = deque(one for one in settled if not isinstance(one, _DIRECT))
        remark = ECHO if isinstance(event, events.Arrived) and event not in shown else ""
        actions: list[Action] = [one for one in settled if isinstance(one, _DIRECT)]
        view = View(self)
        while shown:
            for command in possible(self, self.strategy.on(shown.popleft(), view)):
                action, consequence = carry_out(self, command)
                if action is not None:
                    actions.append(action)
                if consequence is not None:
                    shown.append(consequence)
        self.timeouts.forget_ended(self)
        return Record(now, event, tuple(actions), remark)

    # --- effects of an event on the state, and the events for the strategy

    def _joined(self, event: events.Joined) -> Iterator[events.Event | Skip]:
        node = event.node
        if node in self.busy:
            raise ProtocolError(
                f"{node} joined twice: node ids are never reused", "node_joined_twice", node=node
            )
        self.worker_stats.join(node, self.now)
        self.busy[node] = {}
        self.waiting[node] = event
        yield from self._skipped(self.ledger.skip_deadly())
        yield from self._admit()

    def _admit(self) -> Iterator[events.Event]:
        """Show the strategy the workers that wait, if there are enough of them."""
        if (len(self.slots) + len(self.waiting)) * self.in_flight < self.least_slots:
            return
        joined, self.waiting = self.waiting, {}
        for node in joined:
            self.slots[node] = self.in_flight - len(self.busy[node])
            if self.slots[node]:
                self.idle[node] = None
            self._see_whether_stalled(node)
        yield from joined.values()

    def _hold_back(self) -> Iterator[events.Event | Abort]:
        """Let all workers wait if they are too few. To the strategy they are lost; their tasks are aborted."""
        if len(self.slots) * self.in_flight >= self.least_slots:
            return
        for node in list(self.slots):
            self._withdraw(node)
            self.waiting[node] = events.Joined(node)
            for task in [task for task in self.busy[node] if task in self.open]:
                self.close(task)
                self.ledger.give_back(task)
                yield Abort(task, node)
            yield events.Lost(node)

    def _withdraw(self, node: NodeId) -> bool:
        """Assign a worker no further tasks. Return whether the strategy knew it."""
        self.idle.pop(node, None)
        self.stalled.pop(node, None)
        self.waiting.pop(node, None)
        return self.slots.pop(node, None) is not None

    def _leaving(self, event: events.Leaving) -> Iterator[events.Event | Abort]:
        if self._withdraw(event.node):
            yield event
            yield from self._hold_back()

    def _lost(self, event: events.Lost) -> Iterator[events.Event | Abort | Skip]:
        if event.node in self.busy:
            yield from self._remove(event)
            yield from self._hold_back()

    def _remove(self, event: events.Lost) -> Iterator[events.Event | Skip]:
        node, is_known = event.node, event.node not in self.waiting
        held = [self.held.pop(task) for task in self.busy.pop(node)]
        for task in held:
            self.timeouts.end(task.id)
            if self.open.pop(task.id, None):
                self.ledger.give_back(task.id)
        self._withdraw(node)
        self.worker_stats.lose(node)
        self.ledger.lose(node)
        if event.cause is not None and held:  # tasks are computed in this order
            why = f"ended by {event.cause}"
            yield from self._skipped(self.ledger.strike(held[0].spans, why, held[0].id))
        if is_known:
            yield event

    def _arrived(self, event: events.Arrived) -> Iterator[events.Event | Abort]:
        facts = event.update
        counts = self.expects(facts.id)
        known = self._answered(facts.id, facts.sender, facts.samples)
        if counts:
            del self.open[facts.id]
            for other in self.ledger.arrive(facts.id, facts.samples):
                yield Abort(other, self.close(other).node)
            self.inbox[facts.id] = facts
            yield event
        elif known:
            self.open.pop(facts.id, None)
            yield events.Cancelled(facts.id, facts.sender)

    def _cancelled(self, event: events.Cancelled) -> Iterator[events.Event]:
        if self._answered(event.task, event.node, 0):
            if self.open.pop(event.task, None):
                self.ledger.give_back(event.task)
            yield event

    def _rejection(self, event: events.UpdateRejected) -> Iterator[events.Event | Skip]:
        if not self.expects(event.task):
            yield from self._cancelled(events.Cancelled(event.task, node_of(event.task)))
            return
        task = self.open.pop(event.task)
        self._answered(task.id, task.node, 0)
        yield from self._skipped(
            self.ledger.reject(task.id, event.reason, others_wait=bool(self.inbox), gate=event.gate)
        )
        yield events.Cancelled(task.id, task.node)

    def _skipped(self, skipped: Skipped) -> Iterator[events.Event | Skip]:
        if skipped.spans:
            yield Skip(skipped.spans)
        if skipped.closed:
            yield events.Changed(self.version)

    def _ticked(self, _: events.Ticked) -> Iterator[events.Event | Evict | Skip]:
        for task in self.timeouts.expired(self):
            self.close(task.id)
            self.ledger.give_back(task.id)
            self.worker_stats.timed_out(task.node)
            if task.node in self.idle:  # after the other workers, because this one may hang
                self.idle[task.node] = self.idle.pop(task.node)
            yield events.Cancelled(task.id, task.node)
        for task in self.timeouts.hung(self):
            yield Evict(task.node)
            yield from self._skipped(self.ledger.strike(task.spans, "hung", task.id))
        while self.alarms and self.alarms[0] <= self.now:
            yield events.AlarmFired(heappop(self.alarms))

    def _resumed(self, event: events.Resumed) -> Iterator[events.Event | Action]:
        for name, value in event.settings.items():
            setattr(self if name in {"in_flight", "least_slots"} else self.ledger, name, value)
        self.peers.models.clear()  # their tensors are lost
        for peer in list(self.peers.living):
            yield from self._peer_lost(events.PeerLost(peer))
        for node in list(self.busy):
            for lost in self._remove(events.Lost(node)):
                assert isinstance(lost, events.Lost)  # no sample is the cause
                if event.segment is None:
                    yield lost
        if event.segment is not None:
            yield from start_segment(self, event.segment)

    def _goal_reached(self, _: events.GoalReached) -> Iterator[events.Event]:
        self.slots.clear()
        self.waiting.clear()
        self.idle.clear()
        self.stalled.clear()
        yield from ()

    def _peer_joined(self, event: events.PeerJoined) -> Iterator[events.Event]:
        if event.peer not in self.peers.living:
            self.peers.join(event.peer)
            yield event

    def _peer_lost(self, event: events.PeerLost) -> Iterator[events.Event]:
        if event.peer in self.peers.living:
            self.peers.lose(event.peer)
            yield event

    def _model_requested(self, event: events.ModelRequested) -> Iterator[events.Event]:
        if event.peer in self.peers.living:
            yield event

    def _model_received(self, event: events.ModelReceived) -> Iterator[events.Event]:
        self.peers.models[event.model.id] = event.model
        yield event

    def _noted(
        self,
        _: events.FaultInjected
        | events.Priced
        | events.Ordered
        | events.Gone
        | events.Averaged
        | events.Combined
        | events.LinkTraffic
        | events.Stopped,
    ) -> Iterator[events.Event]:
        """Handle an event that only the log needs."""
        yield from ()

    def _delivered(self, event: events.Event) -> Iterator[events.Event]:
        yield event

    def _answered(self, task: TaskId, node: NodeId, samples: int) -> bool:
        """Record that a worker finished a task in any way. Return False if it did not have the task."""
        since = self.busy.get(node, {}).pop(task, None)
        if since is None:
            return False
        del self.held[task]
        self.timeouts.end(task)
        none_known = self.worker_stats.usual is None
        self.worker_stats.result(node, samples, self.now - since, self.now)
        if none_known and self.worker_stats.usual is not None:
            self.timeouts.replace_provisional(self)
        if node in self.slots:
            self.slots[node] += 1
            self.idle[node] = None
        self._see_whether_stalled(node)
        return True

    def close(self, name: TaskId) -> Task:
        """Close an open task that its worker still holds."""
        task = self.open.pop(name)
        self._see_whether_stalled(task.node)
        return task

    def _see_whether_stalled(self, node: NodeId) -> None:
        held = self.busy.get(node)
        if held and node in self.slots and self.open.keys().isdisjoint(held):
            self.stalled[node] = None
        else:
            self.stalled.pop(node, None)

    # --- copying, comparing and saving -----------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        """Return whether the saved states are equal, random generator included."""
        return isinstance(other, Conductor) and self.to_plain() == other.to_plain()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def to_plain(self) -> dict[str, Any]:
        """Return the state as JSON-serializable data."""
        plain: dict[str, Any] = to_plain(self)
        return plain | {"rng": to_plain(self.rng.getstate())}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], strategy: type[Strategy]) -> "Conductor":
        """Return a saved conductor with a strategy of this class. Without `rng`, the random generator starts again.

        Types are checked; `conductor_checks.read_conductor` also checks the numbers. Raise one of `DAMAGED`, or
        UsageError, if the data are invalid.
        """
        rest = {key: value for key, value in plain.items() if key not in ("strategy", "rng")}
        if not plain["ledger"]["cursors"]:
            raise Misfit("lanes: there are none")
        conductor = cls(strategy=from_plain(strategy, plain["strategy"]), **_fields_of(rest))
        if "rng" in plain:
            version, state, gauss = plain["rng"]
            conductor.rng.setstate((version, tuple(state), gauss))
        return conductor


def _fields_of(plain: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(Conductor)
    return {key: from_plain(hints[key], value) for key, value in plain.items() if key in hints}


_DIRECT = Abort | Evict | Skip | Drop | Release
"""Actions that follow from an event without a command."""

_SETTLE: dict[type, Callable[[Conductor, Any], Iterator[Any]]] = {
    events.Joined: Conductor._joined,
    events.Leaving: Conductor._leaving,
    events.Lost: Conductor._lost,
    events.Arrived: Conductor._arrived,
    events.Cancelled: Conductor._cancelled,
    events.UpdateRejected: Conductor._rejection,
    events.Ticked: Conductor._ticked,
    events.Resumed: Conductor._resumed,
    **dict.fromkeys(
        (
            events.FaultInjected,
            events.Priced,
            events.Ordered,
            events.Gone,
            events.Averaged,
            events.Combined,
            events.LinkTraffic,
            events.Stopped,
        ),
        Conductor._noted,
    ),
    events.GoalReached: Conductor._goal_reached,
    events.PeerJoined: Conductor._peer_joined,
    events.PeerLost: Conductor._peer_lost,
    events.ModelRequested: Conductor._model_requested,
    events.ModelReceived: Conductor._model_received,
    **dict.fromkeys(
        (events.Changed, events.Evaluated, events.RoundTimesFitted, events.ModelRejected),
        Conductor._delivered,
    ),
}
