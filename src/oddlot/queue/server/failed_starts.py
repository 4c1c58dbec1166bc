"""Attempts whose command was never started: when a job starts again, and when it fails."""

from collections import Counter

from oddlot.queue.server.processes import CannotStart

RETRY_SECONDS, MAX_PAUSE = 5.0, 60.0
"""Seconds until the third start, and the longest pause. The second start follows at once, and pauses double."""
MAX_FAILED_STARTS = 5
"""A job fails after this number of starts with a cause that does not pass."""


class FailedStarts:
    """Failed starts in a row, by job. Shortages of processes, memory or disk pass, and never fail a job."""

    def __init__(self) -> None:
        self.errors: dict[int, CannotStart] = {}
        self.counts: Counter[int] = Counter()
        self.lasting: Counter[int] = Counter()
        """Starts with a cause that does not pass."""

    def note(self, job: int, error: CannotStart) -> None:
        """Keep why the present attempt of a job was not started."""
        self.errors[job] = error

    def add(self, job: int) -> tuple[str, float | None]:
        """Add a failed start. Return the reason, and seconds until the next start, or None if the job fails."""
        error = self.errors.pop(job, None)
        self.counts[job] += 1
        self.lasting[job] += error is not None and error.lasts
        reason = "its process ended before the command started" if error is None else str(error)
        if self.lasting[job] >= MAX_FAILED_STARTS:
            return reason, None
        doubled = min(self.counts[job], 10) - 2
        return reason, min(MAX_PAUSE, RETRY_SECONDS * 2**doubled) if doubled >= 0 else 0.0

    def forget(self, job: int) -> None:
        """Forget a job that has started or ended."""
        self.errors.pop(job, None)
        self.counts.pop(job, None)
        self.lasting.pop(job, None)
