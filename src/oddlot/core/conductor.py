"""The books: who is here, who does what, which samples are leased, which version it is.

A conductor is told what happened and what time it is, asks the strategy, and answers with actions. It does no
I/O, holds no tensor and reads no clock: the same history gives the same actions, anywhere.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf, isfinite
from random import Random
from typing import Any, get_type_hints

from oddlot.core.commands import (
    Abort,
    Action,
    Assign,
    Blend,
    Cancel,
    Command,
    Drop,
    Evaluate,
    Evict,
    HandOver,
    Keep,
    Release,
    Skip,
    Start,
    Step,
    Wake,
)
from oddlot.core.deadlines import Deadlines
from oddlot.core.errors import ProtocolError
from oddlot.core.events import (
    Arrived,
    Cancelled,
    Changed,
    Evaluated,
    Event,
    Fitted,
    Gone,
    Joined,
    Leaving,
    Lost,
    Ordered,
    Priced,
    Rang,
    Refused,
    Resumed,
    Stimulus,
    Stopped,
    Struck,
    Ticked,
)
from oddlot.core.ledger import Ledger, Skipped
from oddlot.core.random_streams import stream
from oddlot.core.records import Record
from oddlot.core.serialization import Misfit, from_plain, to_plain
from oddlot.core.spans import Span, samples_in
from oddlot.core.strategy import Strategy, View
from oddlot.core.tasks import Facts, NodeId, Task, TaskId, UpdateId, node_of, task_name
from oddlot.core.worker_stats import SECONDS_UNTIL_ANY_ANSWER, Roster

ECHO = "echo"
HUNG_TIMEOUTS, HUNG_SECONDS = 10.0, 30.0
"""a worker that has sent nothing for so many times its task's timeout, and for so many seconds, is killed"""
MAX_KEPT = 16
"""versions that a strategy may hold at once: each is a whole model"""


@dataclass(eq=False)
class Conductor:
    """Keeps the books of one run and makes a strategy's wishes concrete.

    `in_flight` is how many tasks a worker holds at once: 1 by default; 2 hides the way to the hub and back.
    """

    strategy: Strategy
    ledger: Ledger
    batch: int = 32
    in_flight: int = 1
    seed: int = 0
    scheduled: bool = False
    """where a gradient becomes a step, it is told how many samples were merged before: a schedule goes by that"""
    now: float = 0.0
    version: int = 0
    roster: Roster = field(default_factory=Roster)
    slots: dict[NodeId, int] = field(default_factory=dict)
    """free slots of every worker that may be given work"""
    idle: dict[NodeId, None] = field(default_factory=dict)
    """those with at least one"""
    busy: dict[NodeId, dict[TaskId, float]] = field(default_factory=dict)
    """what every worker holds, since when; cancelled and lapsed tasks too, until it has answered"""
    stalled: dict[NodeId, None] = field(default_factory=dict)
    """those that may be given work, and hold nothing else"""
    open: dict[TaskId, Task] = field(default_factory=dict)
    inbox: dict[UpdateId, Facts] = field(default_factory=dict)
    """updates that wait to be stepped, blended or dropped"""
    kept: dict[str, int] = field(default_factory=dict)
    """versions that the strategy holds, and how often"""
    alarms: list[float] = field(default_factory=list)
    deadlines: Deadlines = field(default_factory=Deadlines)
    held: dict[TaskId, Task] = field(default_factory=dict)
    """what workers have and have not answered, open or not"""
    evictions: Deadlines = field(default_factory=Deadlines)
    """when workers that let a deadline pass count as hung"""
    silence: dict[TaskId, float] = field(default_factory=dict)
    """of the tasks in there: after how many seconds without a word"""
    tasks_made: int = 0

    def __post_init__(self) -> None:
        self.rng: Random = stream(self.seed, "strategy")

    @property
    def alarm(self) -> float:
        """When to call with `Ticked` at the latest; infinity for never."""
        return min(self.alarms[0] if self.alarms else inf, self.deadlines.first, self.evictions.first)

    @property
    def done(self) -> bool:
        """Every sample of every epoch asked for has reached the model."""
        return self.ledger.done

    def expects(self, task: TaskId) -> bool:
        """An answer to this task would count; otherwise it is an echo."""
        return task in self.open and task in self.ledger.leases

    def handle(self, event: Stimulus, now: float) -> Record:
        """Settle the event in the books, ask the strategy, and make its commands concrete."""
        self.now = now
        settled = list(_SETTLE[type(event)](self, event))
        shown = deque(one for one in settled if not isinstance(one, _DIRECT))
        remark = ECHO if isinstance(event, Arrived) and event not in shown else ""
        actions: list[Action] = [one for one in settled if isinstance(one, _DIRECT)]
        view = View(self)
        while shown:
            for command in list(self.strategy.on(shown.popleft(), view)):
                action, consequence = _LOWER[type(command)](self, command)
                if action is not None:
                    actions.append(action)
                if consequence is not None:
                    shown.append(consequence)
        self.deadlines.forget(self.open)
        self.evictions.forget(self.held)
        return Record(now, event, tuple(actions), remark)

    # --- settling: what an event means for the books, what the strategy is told, who came too late

    def _joined(self, event: Joined) -> Iterator[Event]:
        node = event.node
        if node in self.busy:
            raise ProtocolError(
                f"{node} joined twice: node ids are never reused", "node_joined_twice", node=node
            )
        self.roster.join(node, self.now)
        self.busy[node] = {}
        self.slots[node] = self.in_flight
        self.idle[node] = None
        yield event

    def _leaving(self, event: Leaving) -> Iterator[Event]:
        if self.slots.pop(event.node, None) is not None:
            self.idle.pop(event.node, None)
            self.stalled.pop(event.node, None)
            yield event

    def _lost(self, event: Lost) -> Iterator[Event | Skip]:
        node = event.node
        if node not in self.busy:
            return
        held = [self.held.pop(task) for task in self.busy.pop(node)]
        for task in held:
            self.silence.pop(task.id, None)
            if self.open.pop(task.id, None):
                self.ledger.give_back(task.id)
        self.slots.pop(node, None)
        self.idle.pop(node, None)
        self.stalled.pop(node, None)
        self.roster.lose(node)
        self.ledger.lose(node)
        if event.cause is not None and held:  # it computes them in their order
            yield from self._skipped(self.ledger.strike(held[0].spans, f"ended by {event.cause}"))
        yield event

    def _arrived(self, event: Arrived) -> Iterator[Event | Abort]:
        facts = event.update
        counts = self.expects(facts.id)
        known = self._answered(facts.id, facts.sender, facts.samples)
        if counts:
            del self.open[facts.id]
            for other in self.ledger.arrive(facts.id, facts.samples):
                yield Abort(other, self._close(other).node)
            self.inbox[facts.id] = facts
            yield event
        elif known:
            self.open.pop(facts.id, None)
            yield Cancelled(facts.id, facts.sender)

    def _cancelled(self, event: Cancelled) -> Iterator[Event]:
        if self._answered(event.task, event.node, 0):
            if self.open.pop(event.task, None):
                self.ledger.give_back(event.task)
            yield event

    def _refused(self, event: Refused) -> Iterator[Event | Skip]:
        if not self.expects(event.task):
            yield from self._cancelled(Cancelled(event.task, node_of(event.task)))
            return
        task = self.open.pop(event.task)
        self._answered(task.id, task.node, 0)
        yield from self._skipped(self.ledger.refuse(task.id, event.reason))
        yield Cancelled(task.id, task.node)

    def _skipped(self, skipped: Skipped) -> Iterator[Event | Skip]:
        if skipped.spans:
            yield Skip(skipped.spans)
        if skipped.closed:
            yield Changed(self.version)

    def _ticked(self, _: Ticked) -> Iterator[Event | Evict | Skip]:
        waiting = None
        for name, provisional in self.deadlines.due(self.now):
            if (task := self.open.get(name)) is None:
                continue
            since = self.busy[task.node][name]
            if provisional:  # no more than those who wait could begin anew
                waiting = sum(not self.busy[node] for node in self.idle) if waiting is None else waiting - 1
                if waiting < 1:
                    self.deadlines.set(self.now + SECONDS_UNTIL_ANY_ANSWER, name, provisional)
                    self._await_word(name, since, SECONDS_UNTIL_ANY_ANSWER)
                    continue
            self._close(name)
            self.ledger.give_back(name)
            self.roster.lapsed(task.node)
            self._await_word(name, since, self.now - since)
            yield Cancelled(name, task.node)
        yield from self._evict_hung()
        while self.alarms and self.alarms[0] <= self.now:
            yield Rang(heappop(self.alarms))

    def _await_word(self, task: TaskId, since: float, timeout: float) -> None:
        """Its worker hangs if it says nothing for so many times this timeout."""
        self.silence[task] = max(HUNG_SECONDS, HUNG_TIMEOUTS * timeout)
        self.evictions.set(since + self.silence[task], task)

    def _evict_hung(self) -> Iterator[Event | Evict | Skip]:
        """Workers that hold a task for too long, and have not answered any other one meanwhile."""
        evicted = set[NodeId]()
        for name, _ in self.evictions.due(self.now):
            if (task := self.held.get(name)) is None or task.node in evicted:
                continue
            heard = self.roster.members[task.node].last_heard or 0.0
            hung_at = max(heard, self.busy[task.node][name]) + self.silence[name]
            if hung_at > self.now:
                self.evictions.set(hung_at, name)
                continue
            evicted.add(task.node)
            yield Evict(task.node)
            yield from self._skipped(self.ledger.strike(task.spans, "hung"))

    def _resumed(self, event: Resumed) -> Iterator[Event]:
        for name, value in event.settings.items():
            setattr(self if name == "in_flight" else self.ledger, name, value)
        for node in list(self.busy):
            for told in self._lost(Lost(node)):
                assert isinstance(told, Lost)  # no sample is blamed
                yield told

    def _noted(self, _: Struck | Priced | Ordered | Gone | Stopped) -> Iterator[Event]:
        """For the log alone."""
        yield from ()

    def _told(self, event: Event) -> Iterator[Event]:
        yield event

    def _answered(self, task: TaskId, node: NodeId, samples: int) -> bool:
        """The worker is done with the task, whatever came of it. False if it was not known to have it."""
        since = self.busy.get(node, {}).pop(task, None)
        if since is None:
            return False
        del self.held[task]
        self.silence.pop(task, None)
        nobody_had = self.roster.usual is None
        self.roster.result(node, samples, self.now - since, self.now)
        if nobody_had and self.roster.usual is not None:
            self._set_deadlines_anew()
        if node in self.slots:
            self.slots[node] += 1
            self.idle[node] = None
        self._see_whether_stalled(node)
        return True

    def _close(self, name: TaskId) -> Task:
        """The open task, which its worker still holds, is not open any more."""
        task = self.open.pop(name)
        self._see_whether_stalled(task.node)
        return task

    def _see_whether_stalled(self, node: NodeId) -> None:
        held = self.busy.get(node)
        if held and node in self.slots and self.open.keys().isdisjoint(held):
            self.stalled[node] = None
        else:
            self.stalled.pop(node, None)

    # --- lowering: what a command means for the books, and what the host is to do --------------

    def _assign(self, command: Assign) -> tuple[Action | None, None]:
        node = command.node
        if not self.slots.get(node):
            if node not in self.slots:
                told = f"{command} is impossible: {node} is not among view.nodes"
                raise ProtocolError(told, "no_such_node", node=node)
            raise ProtocolError(
                f"{command} is impossible: {node} has no free slot", "no_free_slot", node=node
            )
        if command.deadline is not None and not command.deadline > 0:
            told = f"{command} has no time: a deadline is a number of seconds above 0"
            raise ProtocolError(told, "invalid_deadline", deadline=command.deadline)
        if command.pull is not None and not (command.kind == "weights" and 0 <= command.pull <= 1):
            told = f"{command} is impossible: weights are pulled, by a share from 0 to 1"
            raise ProtocolError(told, "invalid_pull", pull=command.pull)
        version = self._version(command.version, command)
        task_id = task_name(node, self.tasks_made + 1)
        spans = self._lease(task_id, command)
        if not spans:
            return None, None
        self.tasks_made += 1
        self.slots[node] -= 1
        del self.idle[node]
        if self.slots[node]:
            self.idle[node] = None  # behind the others, so that one which brings nothing starves nobody
        patience = self.roster.patience(node, samples_in(spans), command.deadline)
        provisional = command.deadline is None and self.roster.usual is None
        self.deadlines.set(self.now + patience, task_id, provisional)
        kind, pull = command.kind, command.pull
        merged = self.ledger.merged_in_all if self.scheduled and kind != "gradient" else None
        task = self.open[task_id] = self.held[task_id] = Task(
            task_id, node, spans, version, kind, pull, merged
        )
        self.busy[node][task_id] = self.now
        self.stalled.pop(node, None)
        return Start(task), None

    def _set_deadlines_anew(self) -> None:
        """Somebody has answered: now it is known what a task takes, and how long to wait for the others."""
        for name in self.deadlines.take_provisional():
            task = self.open.get(name)
            if task and (since := self.busy[task.node].get(name)) is not None:  # not the one that answers
                patience = self.roster.patience(task.node, samples_in(task.spans))
                self.deadlines.set(since + patience, name)

    def _lease(self, task: TaskId, command: Assign) -> tuple[Span, ...]:
        if command.samples < 1:
            raise ProtocolError(f"{command} asks for no samples", "no_samples", samples=command.samples)
        shards = len(self.ledger.lanes)
        if command.shard is not None and not 0 <= command.shard < shards:
            told = f"{command} is impossible: shards are numbered from 0 to {shards - 1}"
            raise ProtocolError(told, "no_such_shard", shard=command.shard)
        if command.again is None:
            samples = self.roster.load(command.node, command.samples)
            return self.ledger.lease(task, samples, command.node, command.shard)
        if command.again not in self.open:
            told = f"{command} is impossible: {command.again} is not among view.tasks"
            raise ProtocolError(told, "no_such_task", task=command.again)
        # Another task may have had its samples skipped.
        return self.ledger.share(task, command.again) if self.expects(command.again) else ()

    def _cancel(self, command: Cancel) -> tuple[Action, None]:
        if command.task not in self.open:
            told = f"{command} is impossible: it is not among view.tasks"
            raise ProtocolError(told, "no_such_task", task=command.task)
        task = self._close(command.task)
        self.ledger.give_back(task.id)
        return Abort(task.id, task.node), None

    def _hand_over(self, command: HandOver) -> tuple[Action, None]:
        if command.task not in self.open:
            told = f"{command} is impossible: it is not among view.tasks"
            raise ProtocolError(told, "no_such_task", task=command.task)
        return command, None

    def _step(self, command: Step) -> tuple[Action, Event | None]:
        step = self._scheduled(command) if self.scheduled else command
        return step, self._merge(command, points=False)

    def _scheduled(self, command: Step) -> Step:
        """Told what was merged before it; but deltas are made of steps that have followed the schedule already."""
        kinds = {self.inbox[update].kind for update in command.shares if update in self.inbox}
        if len(kinds) > 1:
            raise ProtocolError(
                f"{command} is impossible: a schedule is for gradients, and not all of them are",
                "schedule_without_gradients",
            )
        return replace(command, merged=self.ledger.merged_in_all if "gradient" in kinds else None)

    def _blend(self, command: Blend) -> tuple[Action, Event | None]:
        return command, self._merge(command, points=True)

    def _merge(self, command: Step | Blend, points: bool) -> Event | None:
        if not command.shares:
            raise ProtocolError(f"{command} merges nothing", "empty_merge")
        closed = False
        for update, share in command.shares.items():
            facts = self.inbox.pop(update, None)
            if facts is None:
                told = f"{command} is impossible: {update} is not in the inbox"
                raise ProtocolError(told, "no_such_update", update=update)
            if (facts.kind == "weights") is not points or not 0 <= share < inf:
                told = f"{command}: {update} is of kind {facts.kind!r}, its share {share}"
                raise ProtocolError(told, "unmergeable_update", update=update, kind=facts.kind, share=share)
            self.roster.merged(facts.sender)
            closed = self.ledger.merge(update) or closed
        self.version += 1
        # A measured merge is reported by the store, which alone knows the numbers.
        return Changed(self.version) if closed and not command.measure else None

    def _drop(self, command: Drop) -> tuple[Action, None]:
        facts = self.inbox.pop(command.update, None)
        if facts is None:
            told = f"{command} is impossible: it is not in the inbox"
            raise ProtocolError(told, "no_such_update", update=command.update)
        self.ledger.give_back(command.update)
        self.roster.dropped(facts.sender)
        return command, None

    def _evaluate(self, command: Evaluate) -> tuple[Action, None]:
        self._version(command.version, command)
        return command, None

    def _keep(self, command: Keep) -> tuple[Action, None]:
        self._version(command.version, command)
        key = str(command.version)
        if key not in self.kept and len(self.kept) == MAX_KEPT:
            raise ProtocolError(
                f"{command} is impossible: {MAX_KEPT} versions are kept, release one of them",
                "too_many_kept",
            )
        self.kept[key] = self.kept.get(key, 0) + 1
        return command, None

    def _release(self, command: Release) -> tuple[Action, None]:
        key = str(command.version)
        if key not in self.kept:
            raise ProtocolError(f"{command} is impossible: it is not kept", "version_not_kept", version=key)
        self.kept[key] -= 1
        if not self.kept[key]:
            del self.kept[key]
        return command, None

    def _wake(self, command: Wake) -> tuple[None, None]:
        if not isfinite(command.at):
            raise ProtocolError(f"{command} would never ring", "alarm_never_rings", at=command.at)
        heappush(self.alarms, command.at)
        return None, None

    def _version(self, version: int | None, command: Command) -> int:
        """The version asked for, if it can be had."""
        if version is None or version == self.version:
            return self.version
        if str(version) not in self.kept:
            told = f"{command} is impossible: version {version} is neither newest nor kept"
            raise ProtocolError(told, "version_not_kept", version=version)
        return version

    # --- copying, comparing and saving -----------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        """All that is saved is the same, chance too."""
        return isinstance(other, Conductor) and self.to_plain() == other.to_plain()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def to_plain(self) -> dict[str, Any]:
        """The whole state as JSON-able data; equal conductors give equal data."""
        plain: dict[str, Any] = to_plain(self)
        return plain | {"rng": to_plain(self.rng.getstate())}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any], strategy: type[Strategy]) -> "Conductor":
        """The conductor that was saved, whose strategy is of this class; without `rng`, chance begins anew.

        Types are checked; `conductor_checks.read_conductor` checks the numbers too.

        One of `DAMAGED`, or UsageError: no conductor was saved so.
        """
        rest = {key: value for key, value in plain.items() if key not in ("strategy", "rng")}
        if not plain["ledger"]["lanes"]:
            raise Misfit("lanes: there are none")
        conductor = cls(strategy=from_plain(strategy, plain["strategy"]), **_fields_of(rest))
        if "rng" in plain:
            version, state, gauss = plain["rng"]
            conductor.rng.setstate((version, tuple(state), gauss))
        return conductor


def _fields_of(plain: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(Conductor)
    return {key: from_plain(hints[key], value) for key, value in plain.items() if key in hints}


_DIRECT = Abort | Evict | Skip
"""what settling may yield beside events: actions that no strategy has asked for"""

_SETTLE: dict[type, Callable[[Conductor, Any], Iterator[Any]]] = {
    Joined: Conductor._joined,
    Leaving: Conductor._leaving,
    Lost: Conductor._lost,
    Arrived: Conductor._arrived,
    Cancelled: Conductor._cancelled,
    Refused: Conductor._refused,
    Ticked: Conductor._ticked,
    Resumed: Conductor._resumed,
    **dict.fromkeys((Struck, Priced, Ordered, Gone, Stopped), Conductor._noted),
    **dict.fromkeys((Changed, Evaluated, Fitted), Conductor._told),
}

_LOWER: dict[type, Callable[[Conductor, Any], tuple[Action | None, Event | None]]] = {
    Assign: Conductor._assign,
    Cancel: Conductor._cancel,
    HandOver: Conductor._hand_over,
    Step: Conductor._step,
    Blend: Conductor._blend,
    Drop: Conductor._drop,
    Evaluate: Conductor._evaluate,
    Keep: Conductor._keep,
    Release: Conductor._release,
    Wake: Conductor._wake,
}
