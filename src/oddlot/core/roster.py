"""What is known about every worker: how fast it is, when it was heard of, how patient to be with it."""

from dataclasses import dataclass, field

from oddlot.core.words import NodeId

SECONDS_UNTIL_KNOWN = 60.0
RESULTS_UNTIL_KNOWN = 5
PATIENCE = 4.0
LEAST_PATIENCE_SECONDS = 1.0
REMEMBERED = 20
MERGES_UNTIL_TRUSTED = 20
CLEARLY = 1.25
"""so much longer than others is slow"""


@dataclass(slots=True)
class Member:
    """One worker's history. Times are seconds on the run's clock."""

    joined: float
    results: int = 0
    samples: int = 0
    last_result: float | None = None
    seconds_per_sample: list[float] = field(default_factory=list)
    """of the latest results, from assignment to arrival"""
    slow: float = 0.0
    """their 95th percentile"""
    lapses: int = 0
    """deadlines missed since the last result"""
    drops_in_a_row: int = 0
    halvings: int = 0
    """its tasks are cut to 2**-halvings of what a strategy asks for"""
    merges_in_a_row: int = 0

    @property
    def task_time(self) -> float:
        """Of its tasks as they are cut now, in no unit: for comparing members."""
        recent = self.seconds_per_sample
        return sum(recent) / max(1, len(recent)) / 2.0**self.halvings


@dataclass
class Roster:
    """The members of a run. Leases lapse and loads shrink by what it has seen."""

    members: dict[NodeId, Member] = field(default_factory=dict)

    def join(self, node: NodeId, now: float) -> None:
        """The worker is here."""
        self.members[node] = Member(joined=now)

    def lose(self, node: NodeId) -> None:
        """The worker is gone, with its history: its replacement may be another machine."""
        self.members.pop(node, None)

    def result(self, node: NodeId, samples: int, seconds: float, now: float) -> None:
        """An answer came, in time or late, `seconds` after it was asked for."""
        member = self.members.get(node)
        if member is None or not samples:
            return
        member.results += 1
        member.samples += samples
        member.last_result = now
        member.lapses = 0
        recent = member.seconds_per_sample
        recent.append(seconds / samples)
        if len(recent) > REMEMBERED:
            del recent[0]
        member.slow = sorted(recent)[int(0.95 * (len(recent) - 1) + 0.5)]

    def lapsed(self, node: NodeId) -> None:
        """The worker let a deadline pass."""
        if member := self.members.get(node):
            member.lapses += 1

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
        """Its tasks, as they are cut now, take clearly longer than those of half of the others."""
        others = sorted(
            other.task_time for name, other in self.members.items() if name != node and other.results
        )
        return bool(others) and self.members[node].task_time > CLEARLY * others[len(others) // 2]

    def merged(self, node: NodeId) -> None:
        """Its update reached the model; after twenty in a row one halving is taken back."""
        if member := self.members.get(node):
            member.drops_in_a_row = 0
            member.merges_in_a_row += 1
            if member.merges_in_a_row == MERGES_UNTIL_TRUSTED:
                member.merges_in_a_row = 0
                member.halvings = max(0, member.halvings - 1)

    def load(self, node: NodeId, samples: int) -> int:
        """How many of the `samples` that a strategy asks for this worker is given; not one alone: see `minibatches`."""
        return max(min(2, samples), samples >> self.members[node].halvings)

    def patience(self, node: NodeId, samples: int) -> float:
        """Seconds after which a lease of `samples` samples lapses.

        60 s until five results are in (longer after each lapse), then four times the 95th percentile of the
        worker's own time per sample, and never below one second.
        """
        member = self.members[node]
        learnt = PATIENCE * member.slow * samples
        if member.results < RESULTS_UNTIL_KNOWN:
            return max(learnt, SECONDS_UNTIL_KNOWN * 2.0**member.lapses)
        return float(max(learnt, LEAST_PATIENCE_SECONDS) * 2.0**member.lapses)
