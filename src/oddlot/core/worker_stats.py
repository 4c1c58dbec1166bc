"""Statistics of workers: speed, time of the last response, and task timeouts."""

from dataclasses import dataclass, field
from math import inf

from oddlot.core.tasks import NodeId

FIRST_UPDATE_TIMEOUT_SECONDS = 600.0
"""Task timeout until a worker has finished a task, in seconds."""
SECONDS_UNTIL_KNOWN = 60.0
RESULTS_UNTIL_KNOWN = 5
TIMEOUT_FACTOR = 4.0
MIN_TIMEOUT_SECONDS = 1.0
REMEMBERED = 20
NEWEST_COUNTS = 0.1
"""Weight of the newest task in the usual pace of all workers."""
MERGES_UNTIL_TRUSTED = 20
CLEARLY = 1.25
"""Multiple of the usual seconds per sample that makes a worker slow."""


@dataclass(slots=True)
class WorkerHistory:
    """One worker's history. Times are seconds on the run's clock."""

    joined: float
    """When it joined."""
    results: int = 0
    """Number of its updates, including late updates."""
    samples: int = 0
    """Samples of these updates."""
    last_heard: float | None = None
    """When it last finished or acknowledged a task."""
    seconds_per_sample: list[float] = field(default_factory=list)
    """Seconds per sample of the latest tasks, from assignment to arrival."""
    pace: float = 0.0
    """Mean of `seconds_per_sample`."""
    median: float = 0.0
    """Median of `seconds_per_sample`."""
    slow: float = 0.0
    """95th percentile of `seconds_per_sample`."""
    timeouts: int = 0
    """Timeouts since the last finished task."""
    drops_in_a_row: int = 0
    halvings: int = 0
    """Its tasks have 2**-halvings of the samples that a strategy requests."""
    merges_in_a_row: int = 0

    @property
    def cut_pace(self) -> float:
        """Return a value proportional to the duration of its tasks at their current size."""
        return self.pace / 2.0**self.halvings


@dataclass
class WorkerStats:
    """Statistics of all workers, used to derive timeouts and task sizes."""

    members: dict[NodeId, WorkerHistory] = field(default_factory=dict)
    """History of each worker that is present, by name."""
    usual: float | None = None
    """Usual seconds per sample, over all workers, expected of a new worker. None until a task is finished."""

    def join(self, node: NodeId, now: float) -> None:
        """Add a worker."""
        self.members[node] = WorkerHistory(joined=now)

    def lose(self, node: NodeId) -> None:
        """Remove a lost worker with its history: its replacement may be on another machine."""
        self.members.pop(node, None)

    def result(self, node: NodeId, samples: int, seconds: float, now: float) -> None:
        """Record an update, in time or late, `seconds` after its task was assigned."""
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

    def longest(self, node: NodeId, samples: int) -> float:
        """Return the seconds for `samples` samples at a worker's slowest recent pace; 0 if it has finished no task."""
        member = self.members.get(node)
        return samples * max(member.seconds_per_sample, default=0.0) if member is not None else 0.0

    def timed_out(self, node: NodeId) -> None:
        """Record a timeout of a worker's task."""
        if member := self.members.get(node):
            member.timeouts += 1

    def dropped(self, node: NodeId) -> None:
        """Record that an update was dropped. After two in a row, halve the worker's tasks if it is slower than others.

        Workers of equal speed keep their task sizes: smaller tasks for all would not reduce staleness.
        """
        if member := self.members.get(node):
            member.drops_in_a_row += 1
            member.merges_in_a_row = 0
            if member.drops_in_a_row >= 2 and self._is_slow(node):
                member.drops_in_a_row = 0
                member.halvings += 1

    def _is_slow(self, node: NodeId) -> bool:
        """Return whether its tasks, at their current size, take clearly longer than half of the others' full tasks."""
        return self.members[node].cut_pace > CLEARLY * self._usual_pace(node)

    def _usual_pace(self, node: NodeId) -> float:
        """Return the median pace of the other workers, or infinity if no pace is known."""
        known = [other.pace for name, other in self.members.items() if name != node and other.results]
        return sorted(known)[len(known) // 2] if known else inf

    def merged(self, node: NodeId) -> None:
        """Record that an update was merged.

        A halving is undone after twenty merges in a row, or when tasks twice as large would not be slow.
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
        """Return the size of a worker's task if a strategy requests `samples`. At least 2 if possible: see
        `minibatch_cuts`."""
        return max(min(2, samples), samples >> self.members[node].halvings)

    def timeout(self, node: NodeId, samples: int, requested: float | None = None) -> float:
        """Return the timeout of a task of `samples` samples, in seconds.

        Ten minutes until a task of any worker is finished. Then, until the worker has finished five tasks, one minute
        (doubled by each timeout), and at least four times the usual time of others. Then four times the 95th percentile
        of its own time per sample, and at least one second. `requested` replaces this, but is raised to 1.25 times that
        percentile; otherwise no update of a slow worker would count.
        """
        member = self.members[node]
        if requested is not None:
            return max(requested, CLEARLY * member.slow * samples)
        learnt = TIMEOUT_FACTOR * member.slow * samples
        if member.results < RESULTS_UNTIL_KNOWN:
            least = FIRST_UPDATE_TIMEOUT_SECONDS if self.usual is None else SECONDS_UNTIL_KNOWN
            usual = TIMEOUT_FACTOR * (self.usual or 0.0) * samples
            return max(learnt, usual, least * 2.0**member.timeouts)
        return float(max(learnt, MIN_TIMEOUT_SECONDS) * 2.0**member.timeouts)
