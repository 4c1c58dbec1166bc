"""When the start, the first task or an evaluation of a peer counts as hung. Later tasks are the conductor's."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from oddlot.core import worker_stats
from oddlot.core.task_timeouts import hung_after
from oddlot.engines.evaluations import hung_evaluation_after
from oddlot.engines.local.processes import START_SECONDS

START, TASK, EVALUATION = "start", "task", "evaluation"


@dataclass
class Patience:
    """The present work of a peer, and how long it may take by the rules of a hub for its workers and its evaluator."""

    since: float
    """Start of the present work, in seconds."""
    work: str = START
    """Present work. Empty: none."""
    tasks: int = 0
    """Number of finished tasks."""
    longest_evaluation: float | None = None

    def begin(self, work: str, now: float) -> None:
        """Note that work begins."""
        self.since, self.work = now, work

    def end(self, now: float) -> None:
        """Note that the work has ended."""
        if self.work == EVALUATION:
            self.longest_evaluation = max(self.longest_evaluation or 0.0, now - self.since)
        self.tasks += self.work == TASK
        self.work = ""

    def hung(self, now: float, others: Iterable[float]) -> str:
        """Return the work that hangs; empty if none does. `others`: longest steps of other peers; 0 if unknown."""
        work, limit = self.work, float("inf")
        if work == START:
            limit = START_SECONDS
        elif work == EVALUATION:
            limit = hung_evaluation_after(self.longest_evaluation)
        elif work and not self.tasks and (known := [step for step in others if step]):
            usual = worker_stats.TIMEOUT_FACTOR * median(known)
            limit = hung_after(max(worker_stats.SECONDS_UNTIL_KNOWN, usual))
        return work if now - self.since > limit else ""
