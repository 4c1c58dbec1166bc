"""Expected ends of the running jobs."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from oddlot.queue.core.jobs import QueuedJob

SHORTEST_SECONDS = 1.0


class ExpectedEnds:
    """Running jobs in the order of their expected ends.

    A job that runs longer than predicted is expected to run twice as long, again and again (Tsafrir et al. 2007,
    section 4, corrects expired predictions in a similar way).
    """

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, QueuedJob]] = []
        self.ends: dict[int, float] = {}

    def add(self, job: QueuedJob) -> None:
        """Add a job that has started."""
        self._insert(job, job.started + max(SHORTEST_SECONDS, job.predicted - job.served))

    def remove(self, job: QueuedJob) -> None:
        """Remove a job, if it is there."""
        end = self.ends.pop(job.number, None)
        if end is not None:
            del self.entries[bisect_left(self.entries, (end, job.number))]

    def jobs(self) -> list[QueuedJob]:
        """Return the running jobs, among them those that have been told to stop."""
        return [job for _, _, job in self.entries]

    def all(self, now: float) -> Iterator[tuple[float, QueuedJob]]:
        """Return the expected ends, ascending, with their jobs."""
        while self.entries and self.entries[0][0] <= now:
            end, _, job = self.entries.pop(0)
            while end <= now:
                end += end - job.started
            self._insert(job, end)
        return ((end, job) for end, _, job in self.entries)

    def _insert(self, job: QueuedJob, end: float) -> None:
        self.ends[job.number] = end
        insort(self.entries, (end, job.number, job))
