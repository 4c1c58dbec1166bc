"""Pending jobs in the order of a policy."""

from bisect import bisect_left, insort
from collections.abc import Container, Iterator
from heapq import heappop, heappush

from oddlot.queue.core.jobs import JobState, QueuedJob
from oddlot.queue.core.machines import MachinePool

Key = tuple[object, ...]
Shape = tuple[int, int]


class WaitingLine:
    """Pending jobs by shape (GPUs and cores), each in the order of the jobs' keys.

    Jobs of one shape fit on the same machines, so that only the first of each shape must be tried.
    """

    def __init__(self) -> None:
        self.by_shape: dict[Shape, list[tuple[Key, QueuedJob]]] = {}
        self.shortest: dict[Shape, list[tuple[float, int, QueuedJob]]] = {}
        """Heaps of predicted durations. They contain jobs that have left, until these are the first."""

    def add(self, job: QueuedJob) -> None:
        """Add a job with its key."""
        shape = job.request.shape
        insort(self.by_shape.setdefault(shape, []), (job.key, job))
        heappush(self.shortest.setdefault(shape, []), (job.predicted - job.served, job.number, job))

    def remove(self, job: QueuedJob) -> None:
        """Remove a job. It needs the key with which it was added."""
        entries = self.by_shape[job.request.shape]
        del entries[bisect_left(entries, (job.key,))]
        if not entries:
            del self.by_shape[job.request.shape]
            del self.shortest[job.request.shape]

    def first(self, without: Container[Shape] = ()) -> QueuedJob | None:
        """Return the job with the smallest key, except for jobs of some shapes."""
        heads = (entries[0] for shape, entries in self.by_shape.items() if shape not in without)
        return min(heads, default=(None, None))[1]

    def any_fits(self, pool: MachinePool) -> bool:
        """Return whether any job fits now."""
        return any(pool.place(*shape) is not None for shape in self.by_shape)

    def shortest_seconds(self, shape: Shape) -> float:
        """Return the smallest predicted duration of the jobs with a shape that has jobs."""
        heap = self.shortest[shape]
        while True:
            seconds, _, job = heap[0]
            if job.state is JobState.PENDING and job.predicted - job.served == seconds:
                return seconds
            heappop(heap)

    def jobs(self) -> Iterator[QueuedJob]:
        """Return the jobs in the order of their keys."""
        return (job for _, job in sorted(entry for entries in self.by_shape.values() for entry in entries))
