"""Independent learners, merged whenever enough of them have something new."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from oddlot.core.checks import AtLeastOne, Must, NotNegative, check_settings
from oddlot.core.rules import SGD, Rule
from oddlot.core.strategy import STATE, View, assign, assign_all
from oddlot.core.words import (
    Arrived,
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
    minibatch_cuts,
)


@dataclass
class Quorum:
    """Everybody takes `steps` steps at a time on its own clock. Once a quorum of the learners has brought something,
    and a window of grace has passed, the model moves by the server rule along the weighted mean of start - end.

    Those who were merged go on from there. Who is late is not waited for and not cancelled: its steps, from an older
    model, are merged with the next round's, and it goes on at once when it comes. The window is a share of what the
    round has taken, so that it costs no more than that; it ends where everybody has brought something.

    A learner's weight is its samples times its samples a step, so that those who computed more, in steps of more
    samples, count more.

    Paper: Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training" (2026, arXiv 2604.21428), the
    syncer. There learners compute on while it merges, and models travel in fragments; here a learner waits for the
    merge and models are whole: one that went on before its own steps had been merged would lose them.
    """

    steps: AtLeastOne = 8
    """local steps of one job's batch each, between two meetings"""
    quorum: Annotated[float, Must("above 0 and at most 1", lambda quorum: 0 < quorum <= 1)] = 0.5
    """a merge waits for this share of the learners"""
    grace: NotNegative = 0.05
    """the share of what a round has taken until the quorum was there, for which it stays open for others"""
    server: Rule = field(default_factory=lambda: SGD(lr=0.7, momentum=0.9, nesterov=True))
    """the rule at the hub: as DiLoCo has it"""
    round: dict[UpdateId, float] = field(default_factory=dict)
    """state: the weight of every update of this round"""
    fresh: dict[NodeId, bool] = field(default_factory=dict)
    """state: learners that are still there and have brought one that is not late"""
    quiet: dict[NodeId, bool] = field(default_factory=dict)
    """state: learners that let their lease lapse, and have brought nothing since: they are not waited for"""
    began: float = field(default=0.0, metadata=STATE)
    """state: when it did, or somebody began to work, in seconds"""
    closes: float | None = field(default=None, metadata=STATE)
    """state: when the window of grace ends, once there is a quorum"""

    def __post_init__(self) -> None:
        check_settings(self)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect a round; close it when nobody else is to come, or the window of grace is over."""
        self._note(event, view)
        samples, there = self.steps * view.batch, len(view.nodes) - len(self.quiet)
        if self.round and self.closes is None and len(self.fresh) >= self.quorum * there:
            self.closes = view.now + self.grace * (view.now - self.began)
            yield Wake(self.closes)
        everybody = not view.tasks or len(self.fresh) >= there
        if self.round and (everybody or (self.closes is not None and view.now >= self.closes)):
            yield self._merge(view.now)
            yield from assign_all(view, samples, "delta")
        elif view.work_left and len(view.idle) > len(self.fresh):  # who waits for the merge is idle
            for node in [event.update.sender] if isinstance(event, Arrived) else view.idle:
                if node not in self.fresh:
                    yield from assign(view, node, samples, "delta")

    def _note(self, event: Event, view: View) -> None:
        """What has come in, and who is there."""
        if not self.round and not view.tasks:
            self.began = view.now
        match event:
            case Arrived(update):
                self.quiet.pop(update.sender, None)
                self.round[update.id] = _weight(update, view.batch)
                if view.staleness(update) == 0 and update.sender in view.nodes:
                    self.fresh[update.sender] = True
            case Leaving(node) | Lost(node):
                self.fresh.pop(node, None)
                self.quiet.pop(node, None)
            case Cancelled(node=node) if node in view.nodes and view.roster.members[node].lapses:
                self.quiet[node] = True

    def _merge(self, now: float) -> Command:
        total = sum(self.round.values())
        step = Step({update: weight / total for update, weight in self.round.items()})
        self.round.clear()
        self.fresh.clear()
        self.began, self.closes = now, None
        return step


def _weight(update: Facts, batch: int) -> float:
    """Its samples times its samples a step."""
    steps = len(minibatch_cuts(update.samples, batch)) - 1
    return update.samples * update.samples / steps
