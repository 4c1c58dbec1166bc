"""Independent learners, merged whenever enough of them have something new."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from oddlot.core.checks import AtLeastOne, Must, check_settings
from oddlot.core.rules import SGD, Rule
from oddlot.core.strategy import View, assign_all, assign_idle
from oddlot.core.words import (
    Arrived,
    Command,
    Event,
    Facts,
    Leaving,
    Lost,
    NodeId,
    Step,
    UpdateId,
    minibatch_cuts,
)


@dataclass
class Quorum:
    """Everybody takes `steps` steps at a time on its own clock and waits for nobody; once a quorum of the learners has
    brought something, the model moves by the server rule along the weighted mean of start - end.

    A learner goes on at once from the newest model. So it sees a merge when it comes back, and until the first of
    those who have brought something does, waiting for more of them costs nobody anything: that is the window of grace
    after the quorum. It grows and shrinks with what a learner's steps take. A round ends sooner where everybody has
    brought something, or nobody works any more. What comes late counts in the next round.

    A learner's weight is its samples times its samples a step, so that those who computed more, in steps of more
    samples, count more. With one learner this is `LocalSGD`.

    Paper: Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training" (2026, arXiv 2604.21428), the
    syncer; whole models travel here, not fragments.
    """

    steps: AtLeastOne = 8
    """local steps of one job's batch each, between two meetings"""
    quorum: Annotated[float, Must("above 0 and at most 1", lambda quorum: 0 < quorum <= 1)] = 0.5
    """the share of the learners that a merge waits for"""
    server: Rule = field(default_factory=lambda: SGD(lr=0.7, momentum=0.9, nesterov=True))
    """the rule at the hub: as DiLoCo has it"""
    round: dict[UpdateId, float] = field(default_factory=dict)
    """state: the weight of every update of this round"""
    senders: dict[NodeId, int] = field(default_factory=dict)
    """state: how many of them each learner that is still there has brought"""

    def __post_init__(self) -> None:
        check_settings(self)

    def on(self, event: Event, view: View) -> Iterable[Command]:
        """Collect a round; close it when the first of a quorum comes back, or nobody else is to come."""
        merges = False
        match event:
            case Arrived(update):
                if update.sender in self.senders and self._is_quorum(view):
                    yield self._merge()
                    merges = True
                self.round[update.id] = _weight(update, view.batch)
                if update.sender in view.nodes:
                    self.senders[update.sender] = self.senders.get(update.sender, 0) + 1
            case Leaving(node) | Lost(node):
                self.senders.pop(node, None)
        if self.round and (len(self.senders) >= len(view.nodes) or not view.tasks):
            yield self._merge()
            merges = True
        yield from (assign_all if merges else assign_idle)(view, self.steps * view.batch, "delta")

    def _is_quorum(self, view: View) -> bool:
        """Of those who are heard of: a worker that let its lease lapse is not waited for."""
        there = len(view.nodes)
        if len(self.senders) < self.quorum * there:
            there = sum(not view.roster.members[node].lapses for node in view.nodes)
        return len(self.senders) >= self.quorum * there

    def _merge(self) -> Command:
        total = sum(self.round.values())
        step = Step({update: weight / total for update, weight in self.round.items()})
        self.round.clear()
        self.senders.clear()
        return step


def _weight(update: Facts, batch: int) -> float:
    """Its samples times its samples a step."""
    steps = len(minibatch_cuts(update.samples, batch)) - 1
    return update.samples * update.samples / steps
