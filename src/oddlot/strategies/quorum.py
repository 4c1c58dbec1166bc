"""Independent learners, merged whenever enough of them have something new."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated

from oddlot.core.checks import Must, NotNegative
from oddlot.core.rules import SGD
from oddlot.core.spans import minibatch_cuts
from oddlot.core.strategy import STATE, View
from oddlot.core.words import (
    Arrived,
    Assign,
    Cancelled,
    Command,
    Event,
    Facts,
    Leaving,
    Lost,
    NodeId,
    Step,
    UpdateId,
    Wake,
)
from oddlot.core.wrapper import Wrapper
from oddlot.strategies.local_sgd import LocalSGD


def _diloco() -> LocalSGD:
    return LocalSGD(server=SGD(lr=0.7, momentum=0.9, nesterov=True))


@dataclass
class Quorum(Wrapper[LocalSGD]):
    """Everybody takes the local steps of the `LocalSGD` inside on its own clock. Once a quorum of the learners has
    brought something, and a window of grace has passed, the model moves by its server rule along the weighted mean of
    start - end: meetings that wait for few in place of its rounds, which wait for everybody.

    Those who were merged go on from there. Who is late is not waited for and not cancelled: its steps, from an older
    model, are merged with the next round's, and it goes on at once when it comes. The window is a share of what the
    round has taken, so that it costs no more than that; it ends where everybody has brought something. Nobody has two
    tasks at once.

    A learner's weight is its samples times its samples a step, so that those who computed more, in steps of more
    samples, count more. The share of one that is s versions late is (1 + s) ** -damping of that: trusted in full, late
    steps and the server rule's momentum swing against each other.

    Paper: Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training" (2026, arXiv 2604.21428), the
    syncer. There learners compute on while it merges, and models travel in fragments; here a learner waits for the
    merge and models are whole: one that went on before its own steps had been merged would lose them.
    """

    inner: LocalSGD = field(default_factory=_diloco)
    """what a learner does between two meetings, and the rule at the hub: as DiLoCo has it"""
    quorum: Annotated[float, Must("above 0 and at most 1", lambda quorum: 0 < quorum <= 1)] = 0.5
    """a merge waits for so many updates that are not late as this share of the learners, whoever brings them"""
    grace: Annotated[float, Must("from 0 to 1,000", lambda grace: 0 <= grace <= 1_000)] = 0.05
    """the share of what a round has taken until the quorum was there, for which it stays open for others"""
    damping: NotNegative = 1.0
    """the power with which an update's share falls with its staleness, as `Asynchronous` has it"""
    round: dict[UpdateId, float] = field(default_factory=dict)
    """state: the weight of every update of this round"""
    late: dict[UpdateId, int] = field(default_factory=dict)
    """state: by how many versions each of them is"""
    fresh: dict[UpdateId, NodeId] = field(default_factory=dict)
    """state: those that are not late, of learners that are still there: who has brought them"""
    quiet: dict[NodeId, bool] = field(default_factory=dict)
    """state: learners that let their lease lapse, and have brought nothing since: they are not waited for"""
    began: float = field(default=0.0, metadata=STATE)
    """state: when it did, or somebody began to work, in seconds"""
    closes: float | None = field(default=None, metadata=STATE)
    """state: when the window of grace ends, once there is a quorum"""

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect a round; close it when nobody else is to come, or the window of grace is over."""
        self._note(event, view)
        there = len(view.nodes) - len(self.quiet)
        if self.round and self.closes is None and len(self.fresh) >= self.quorum * there:
            self.closes = view.now + self.grace * (view.now - self.began)
            yield Wake(self.closes)
        everybody = not view.tasks or len(self.fresh) >= there
        if self.round and (everybody or (self.closes is not None and view.now >= self.closes)):
            yield self._merge(view.now)
            yield from self._assign(view.idle, view)
        elif view.work_left:
            yield from self._assign(self._without_work(event, view), view)

    def _note(self, event: Event, view: View) -> None:
        """What has come in, and who is there."""
        if not self.round and not view.tasks:
            self.began = view.now
        match event:
            case Arrived(update):
                self.quiet.pop(update.sender, None)
                self.round[update.id] = _weight(update, view.batch)
                self.late[update.id] = view.staleness(update)
                if not self.late[update.id] and update.sender in view.nodes:
                    self.fresh[update.id] = update.sender
            case Leaving(node) | Lost(node):
                self.fresh = {update: sender for update, sender in self.fresh.items() if sender != node}
                self.quiet.pop(node, None)
            case Cancelled(node=node) if node in view.nodes and view.roster.members[node].lapses:
                if node not in self.fresh.values():
                    self.quiet[node] = True

    def _without_work(self, event: Event, view: View) -> list[NodeId]:
        """Who is not waiting for the merge."""
        if isinstance(event, Arrived):
            return [] if event.update.id in self.fresh else [event.update.sender]
        waiting = set(self.fresh.values())
        return [node for node in view.idle if node not in waiting]

    def _assign(self, nodes: Iterable[NodeId], view: View) -> Iterator[Command]:
        for node in nodes:
            if view.has_no_task(node):
                yield Assign(node, self.inner.steps * view.batch, "delta")

    def _merge(self, now: float) -> Command:
        total = sum(self.round.values())
        trust = {update: (1 + late) ** -self.damping for update, late in self.late.items()}
        step = Step({update: weight / total * trust[update] for update, weight in self.round.items()})
        self.round.clear()
        self.late.clear()
        self.fresh.clear()
        self.began, self.closes = now, None
        return step


def _weight(update: Facts, batch: int) -> float:
    """Its samples times its samples a step."""
    steps = len(minibatch_cuts(update.samples, batch)) - 1
    return update.samples * update.samples / steps
