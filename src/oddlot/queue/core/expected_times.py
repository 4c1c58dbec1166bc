"""Expected starts and ends of jobs: the scheduler, simulated forward with given durations."""

from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from oddlot.queue.core.commands import CancelJob, Command, PreemptJob, StartJob
from oddlot.queue.core.events import JobCancelled, JobFinished, JobStopped
from oddlot.queue.core.expected_ends import SHORTEST_SECONDS
from oddlot.queue.core.jobs import JobState, QueuedJob
from oddlot.queue.core.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ExpectedTimes:
    """When a job is expected to start its next attempt, and to end. Times in seconds."""

    start: float
    end: float


def expected_times(
    scheduler: Scheduler, durations: Mapping[str, float], now: float, most: int = 200
) -> dict[str, ExpectedTimes]:
    """Return the expected times of jobs that can run, if no other job comes. The scheduler is unchanged.

    `durations`: seconds of each complete job, by id. A job without one takes as long as predicted. A job that runs
    longer than this takes twice as long, or four times, and so on. `most`: number of pending jobs, in their order. The
    others are left out.
    """
    copy = deepcopy(scheduler)
    for job in list(copy.line.jobs())[most:]:
        copy.note(JobCancelled(now, job.request.id))
    return _Forward(copy, durations).run(now)


class _Forward:
    """A scheduler in virtual time. Jobs stop at once when they are preempted, and keep all of their work."""

    def __init__(self, scheduler: Scheduler, durations: Mapping[str, float]) -> None:
        self.scheduler, self.durations = scheduler, durations
        self.starts: dict[str, float] = {}
        self.ends: list[tuple[float, int, int, str]] = []
        """Heap of ends, with the number, the attempt and the id of each job."""
        self.found: dict[str, ExpectedTimes] = {}

    def run(self, now: float) -> dict[str, ExpectedTimes]:
        for job in self.scheduler.jobs.values():
            if job.state is not JobState.PENDING:
                self.starts[job.request.id] = job.started
                self.ends.append(self._end(job, now))
        heapify(self.ends)
        self._perform(self.scheduler.decide(now), now)
        while self.ends:
            now, _, attempt, name = heappop(self.ends)
            ending = self.scheduler.jobs.get(name)
            if ending is None or ending.attempt != attempt or ending.state is JobState.PENDING:
                continue
            self.found[name] = ExpectedTimes(self.starts[name], now)
            self._perform(self.scheduler.handle(JobFinished(now, name, attempt)), now)
        return self.found

    def _end(self, job: QueuedJob, now: float) -> tuple[float, int, int, str]:
        name = job.request.id
        left = max(SHORTEST_SECONDS, self.durations.get(name, job.predicted) - job.served)
        while job.started + left < now:
            left *= 2
        return job.started + left, job.number, job.attempt, name

    def _perform(self, commands: list[Command], now: float) -> None:
        left = deque(commands)
        while left:
            match left.popleft():
                case StartJob(name):
                    self.starts.setdefault(name, now)
                    heappush(self.ends, self._end(self.scheduler.jobs[name], now))
                case PreemptJob(name, attempt) | CancelJob(name, attempt):
                    kept = now - self.scheduler.jobs[name].started
                    left.extend(self.scheduler.handle(JobStopped(now, name, attempt, kept)))
                case _:
                    pass
