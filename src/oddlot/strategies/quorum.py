"""Learners on their own clocks, whose updates are merged whenever enough of them have something new."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from oddlot.core.commands import Command, Step, Wake
from oddlot.core.errors import ProtocolError, UsageError
from oddlot.core.events import Arrived, Event, Leaving, Lost, Rang
from oddlot.core.spans import minibatch_cuts
from oddlot.core.strategy import STATE, Narrowed, Traits, View
from oddlot.core.strategy_wrapper import Wrapper
from oddlot.core.tasks import Facts, NodeId, Task, UpdateId
from oddlot.core.validation import Must, NotNegative


@dataclass
class Quorum(Wrapper):
    """As the strategy inside, whose rounds wait for everybody, but everybody works on its own clock. Once a quorum of
    the learners has brought something, and a window of grace has passed, the round closes without the others.

    Put `LocalSGD` inside: with `server=SGD(lr=0.7, momentum=0.9, nesterov=True)` this is the paper's. Those who were
    merged go on from there. Who is late is not waited for and not cancelled: its steps, from an older model, are merged
    with the next round's, and it goes on at once when it comes. The window is a share of what the round has taken, so
    that it costs no more than that; it ends where everybody has brought something. Nobody has two tasks at once.

    A learner's weight is that of the strategy inside, which goes by samples, times its samples a local step, so that
    those who computed more, in steps of more samples, count more. The share of one that is s versions late is
    (1 + s) ** -damping of that: trusted in full, late steps and the server rule's momentum swing against each other.

    Paper: Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training" (2026, arXiv 2604.21428), the
    syncer. There learners compute on while it merges, and models travel in fragments; here a learner waits for the
    merge and models are whole: one that went on before its own steps had been merged would lose them.
    """

    quorum: Annotated[float, Must("above 0 and at most 1", lambda quorum: 0 < quorum <= 1)] = 0.5
    """a merge waits for so many updates that are not late as this share of the learners, whoever brings them"""
    grace: Annotated[float, Must("from 0 to 1,000", lambda grace: 0 <= grace <= 1_000)] = 0.05
    """the share of what a round has taken until the quorum was there, for which it stays open for others: it costs up
    to as much of the time, and fewer come late; 0: none"""
    damping: NotNegative = 1.0
    """the power with which an update's share falls with its staleness, as `Asynchronous` has it"""
    round: dict[UpdateId, Facts] = field(default_factory=dict)
    """state: the updates of this round, of which the strategy inside does not know yet"""
    fresh: dict[UpdateId, NodeId] = field(default_factory=dict)
    """state: those that are not late, of learners that are still there: who has brought them"""
    began: float = field(default=0.0, metadata=STATE)
    """state: when it did, or somebody began to work, in seconds"""
    closes: float | None = field(default=None, metadata=STATE)
    """state: when the window of grace ends, once there is a quorum"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.inner.traits(1).waits_for_all:
            raise UsageError(
                f"inner = {type(self.inner).__name__}(...) must wait for everybody in each round, as LocalSGD and "
                "Synchronous do (one of your own says so by `Traits(waits_for_all=True)`)",
                "inner_waits_for_no_round",
                "inner",
                inner=type(self.inner).__name__,
            )

    def traits(self, batch_size: int) -> Traits:
        """A round waits for a quorum."""
        return replace(super().traits(batch_size), waits_for_all=False, quorum=self.quorum)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect a round; close it when nobody else is to come, or the window of grace is over."""
        self._note(event, view)
        there = self._there(view)
        if self.round and self.closes is None and len(self.fresh) >= self.quorum * there:
            self.closes = view.now + self.grace * (view.now - self.began)
            yield Wake(self.closes)
        everybody = not view.tasks or len(self.fresh) >= there
        if self.round and (everybody or (self.closes is not None and view.now >= self.closes)):
            yield from self._close(event, view)
        else:  # for whoever does not wait for the merge
            told = Rang(view.now) if isinstance(event, Arrived) else event
            yield from self.inner.on(told, _seen(view, self._without_work(event, view), view.tasks))

    def _note(self, event: Event, view: View) -> None:
        """What has come in, and who is there."""
        if not self.round and not view.tasks:
            self.began = view.now
        match event:
            case Arrived(update):
                self.round[update.id] = update
                if not view.staleness(update) and update.sender in view.nodes:
                    self.fresh[update.id] = update.sender
            case Leaving(node) | Lost(node):
                self.fresh = {update: sender for update, sender in self.fresh.items() if sender != node}

    def _there(self, view: View) -> int:
        """How many may bring something, or have."""
        waiting = set(self.fresh.values()) if view.stalled else ()
        return len(view.nodes) - sum(node not in waiting for node in view.stalled)

    def _without_work(self, event: Event, view: View) -> list[NodeId]:
        """Who is not waiting for the merge."""
        if isinstance(event, Arrived):
            return [] if event.update.id in self.fresh else [event.update.sender]
        waiting = set(self.fresh.values())
        return [node for node in view.idle if node not in waiting]

    def _close(self, event: Event, view: View) -> Iterator[Command]:
        """The strategy inside is told of this, and then of one after another, as if these alone had worked."""
        merged = False
        missing = {id_: Task(id_, one.sender, (), one.based_on, one.kind) for id_, one in self.round.items()}
        if not isinstance(event, Arrived):
            yield from self.inner.on(event, _seen(view, (), missing))
        for update in self.round.values():
            del missing[update.id]
            idle = () if missing else view.idle
            for command in self.inner.on(Arrived(update), _seen(view, idle, missing)):
                merged = merged or isinstance(command, Step)
                yield self._weighed(command, view) if isinstance(command, Step) else command
        if not merged:
            raise ProtocolError(
                f"{type(self.inner).__name__} waits for everybody, and makes no step of a whole round",
                "inner_steps_by_part",
                inner=type(self.inner).__name__,
            )
        self.round, self.fresh = {}, {}
        self.began, self.closes = view.now, None

    def _weighed(self, step: Step, view: View) -> Step:
        """With shares that go by samples a step too; they have the same sum, but for what is late."""
        updates = [(share, self.round[update]) for update, share in step.shares.items()]
        weights = [share * _samples_a_step(update, view) for share, update in updates]
        scale = sum(step.shares.values()) / sum(weights)
        trusts = [(1 + view.staleness(update)) ** -self.damping for _, update in updates]
        shares = (scale * weight * trust for weight, trust in zip(weights, trusts, strict=True))
        return replace(step, shares=dict(zip(step.shares, shares, strict=True)))


def _seen(view: View, idle: Iterable[NodeId], tasks: Mapping[str, Task]) -> View:
    """By the strategy inside: of those who are idle, whoever holds no other task."""
    return Narrowed.of(view, {node: None for node in idle if view.has_no_task(node)}, tasks)


def _samples_a_step(update: Facts, view: View) -> float:
    """Samples of one of its local steps; a gradient has none."""
    if update.kind != "delta":
        return 1.0
    return update.samples / (len(minibatch_cuts(update.samples, view.batch)) - 1)
