"""Statistics of workers: how fast each is, when it last answered, and how long to wait for its tasks."""

from dataclasses import dataclass, field
from math import inf

from oddlot.core.tasks import NodeId

SECONDS_UNTIL_ANY_ANSWER = 600.0
"""as long as nobody has answered, nobody knows what a task takes"""
SECONDS_UNTIL_KNOWN = 60.0
RESULTS_UNTIL_KNOWN = 5
TIMEOUT_FACTOR = 4.0
MIN_TIMEOUT_SECONDS = 1.0
REMEMBERED = 20
NEWEST_COUNTS = 0.1
"""the weight of the newest result in the usual pace of all"""
MERGES_UNTIL_TRUSTED = 20
CLEARLY = 1.25
"""so much longer than others is slow"""


@dataclass(slots=True)
class Member:
    """One worker's history. Times are seconds on the run's clock."""

    joined: float
    results: int = 0
    samples: int = 0
    last_heard: float | None = None
    """when it last answered a task, whatever the answer"""
    seconds_per_sample: list[float] = field(default_factory=list)
    """of the latest results, from assignment to arrival"""
    pace: float = 0.0
    """their mean"""
    median: float = 0.0
    """of theirs, which does not mind one that took long"""
    slow: float = 0.0
    """their 95th percentile"""
    timeouts: int = 0
    """deadlines missed since the last result"""
    drops_in_a_row: int = 0
    halvings: int = 0
    """its tasks are cut to 2**-halvings of what a strategy asks for"""
    merges_in_a_row: int = 0

    @property
    def cut_pace(self) -> float:
        """In proportion to what its tasks take, cut as they are now."""
        return self.pace / 2.0**self.halvings


@dataclass
class Roster:
    """The members of a run. Timeouts and loads follow from what it has seen."""

    members: dict[NodeId, Member] = field(default_factory=dict)
    usual: float | None = None
    """seconds a sample, of everybody that ever brought anything: what is expected of somebody new; None before that"""

    def join(self, node: NodeId, now: float) -> None:
        """The worker is here."""
        self.members[node] = Member(joined=now)

    def lose(self, node: NodeId) -> None:
        """The worker is gone, with its history: its replacement may be another machine."""
        self.members.pop(node, None)

    def result(self, node: NodeId, samples: int, seconds: float, now: float) -> None:
        """An answer came, in time or late, `seconds` after it was asked for."""
        member = self.members.get(node)
        if member is None:
            return
        member.last_heard = now
        if not samples:
            return
        member.results += 1
        member.samples += samples
        member.timeouts = 0
        recent = member.seconds_per_sample
        recent.append(pace := seconds / samples)
        usual = pace if self.usual is None else self.usual
        self.usual = usual + (pace - usual) * NEWEST_COUNTS
        if len(recent) > REMEMBERED:
            del recent[0]
        member.pace = sum(recent) / len(recent)
        ordered = sorted(recent)
        member.median = ordered[(len(ordered) - 1) // 2]
        member.slow = ordered[int(0.95 * (len(ordered) - 1) + 0.5)]

    def timed_out(self, node: NodeId) -> None:
        """A task of the worker timed out."""
        if member := self.members.get(node):
            member.timeouts += 1

    def dropped(self, node: NodeId) -> None:
        """Its update was thrown away; after two in a row its tasks are halved, if it is slower than others.

        So it can keep up. Of equals, smaller tasks for all would leave everybody as late as before.
        """
        if member := self.members.get(node):
            member.drops_in_a_row += 1
            member.merges_in_a_row = 0
            if member.drops_in_a_row >= 2 and self._is_slow(node):
                member.drops_in_a_row = 0
                member.halvings += 1

    def _is_slow(self, node: NodeId) -> bool:
        """Its tasks, as they are cut now, take clearly longer than uncut ones of half of the others."""
        return self.members[node].cut_pace > CLEARLY * self._usual_pace(node)

    def _usual_pace(self, node: NodeId) -> float:
        """The median of those that are known, without this one; infinity where nobody is."""
        known = [other.pace for name, other in self.members.items() if name != node and other.results]
        return sorted(known)[len(known) // 2] if known else inf

    def merged(self, node: NodeId) -> None:
        """Its update reached the model.

        A halving is taken back after twenty in a row, or as soon as tasks twice as large would not be slow.
        """
        if member := self.members.get(node):
            member.drops_in_a_row = 0
            member.merges_in_a_row += 1
            trusted = member.merges_in_a_row == MERGES_UNTIL_TRUSTED
            if trusted:
                member.merges_in_a_row = 0
            if member.halvings and (trusted or 2 * member.cut_pace < CLEARLY * self._usual_pace(node)):
                member.halvings -= 1

    def load(self, node: NodeId, samples: int) -> int:
        """How many of the `samples` that a strategy asks for this worker is given; see `minibatch_cuts` for the 2."""
        return max(min(2, samples), samples >> self.members[node].halvings)

    def timeout(self, node: NodeId, samples: int, wished: float | None = None) -> float:
        """Return the seconds after which a task of `samples` samples times out.

        Ten minutes until anybody has answered; then a minute until five results are in (longer after each timeout), and
        at least four times what others have taken; then four times the 95th percentile of the worker's own time per
        sample, and never below one second. What is `wished` instead holds unless it is clearly less than that
        percentile: then no answer of this worker would ever count.
        """
        member = self.members[node]
        if wished is not None:
            return max(wished, CLEARLY * member.slow * samples)
        learnt = TIMEOUT_FACTOR * member.slow * samples
        if member.results < RESULTS_UNTIL_KNOWN:
            least = SECONDS_UNTIL_ANY_ANSWER if self.usual is None else SECONDS_UNTIL_KNOWN
            usual = TIMEOUT_FACTOR * (self.usual or 0.0) * samples
            return max(learnt, usual, least * 2.0**member.timeouts)
        return float(max(learnt, MIN_TIMEOUT_SECONDS) * 2.0**member.timeouts)
