"""One trace under one policy, event by event."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from operator import attrgetter

from oddlot.core.support.errors import UsageError
from oddlot.core.support.text import counted
from oddlot.queue.core.commands import PreemptJob, StartJob
from oddlot.queue.core.events import JobFinished, JobStopped, JobSubmitted
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.core.machines import Machine
from oddlot.queue.core.policy import Policy
from oddlot.queue.core.scheduler import Scheduler
from oddlot.queue.traces.trace import TraceJob

TICK_SECONDS = 300.0
"""Interval of decisions without an event, for policies whose priorities change with time, or that preempt."""

Predict = Callable[[TraceJob, float], float]
"""Returns the predicted duration of a job in seconds, at the time of its submission."""
Observe = Callable[[JobRequest, float, float], None]
"""Takes a job that has ended, its duration in seconds, and the time of its end."""


def preemption_seconds(gpus: int) -> float:
    """Return the seconds that a preemption costs a job: saving, loading and starting (Helios' simulator)."""
    return 7.0 if gpus <= 1 else 30.0 if gpus <= 8 else 60.0


@dataclass(slots=True)
class ReplayedJob:
    """A job of a replay. Times in seconds."""

    job: TraceJob
    started: float = inf
    """Time of its first start."""
    ended: float = inf
    attempts: int = 0
    remaining: float = 0.0
    """Seconds until its end, at the last start."""
    intervals: list[tuple[float, float]] = field(default_factory=list)
    """Start and end of each attempt."""
    since: float | None = None
    """Time of its last start, while it runs."""

    @property
    def completion(self) -> float:
        """Seconds from its submission to its end."""
        return self.ended - self.job.request.submitted

    @property
    def waited(self) -> float:
        """Seconds in which it did not run. The cost of preemptions counts as waiting."""
        return self.completion - self.job.duration


class Simulation:
    """Schedulers of the virtual clusters, one clock, and jobs that run as long as the trace says.

    Parameters
    ----------
    jobs
        Jobs of the trace. Those of a virtual cluster without machines are an error.
    policy
        A policy.
    machines
        Machines by virtual cluster. With the single key "", all clusters share its machines.
    predict, observe
        The predictor. Without it, durations are predicted exactly.
    shares
        Shares of the virtual clusters, for shared machines.
    longest_wait
        As for `Scheduler`.
    """

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        policy: Policy,
        machines: Mapping[str, Iterable[Machine]],
        predict: Predict | None = None,
        observe: Observe | None = None,
        shares: Mapping[str, float] | None = None,
        longest_wait: float | None = None,
    ) -> None:
        self.policy = policy
        self.schedulers = {
            name: Scheduler(policy, pool, shares, longest_wait) for name, pool in machines.items()
        }
        self.predict, self.observe = predict, observe
        self.jobs = {
            job.request.id: ReplayedJob(job, remaining=job.duration)
            for job in sorted(jobs, key=attrgetter("request.submitted"))
        }
        if len(self.jobs) != len(jobs):
            raise UsageError("two jobs of the trace have the same id", "duplicate_jobs")
        self._ends: list[tuple[float, int, ReplayedJob, Scheduler, int]] = []
        """Heap of ends: time, number of the start, job, its scheduler, attempt."""
        self._started = 0

    def run(self) -> list[ReplayedJob]:
        """Run all jobs to their end, and return them in the order of submission.

        Raise UsageError if the policy holds jobs back for ever, and PolicyFailed if it fails for a job.
        """
        arrivals = [(job.job.request.submitted, job, self._scheduler_of(job)) for job in self.jobs.values()]
        arrivals.reverse()
        tick = inf
        while arrivals or self._ends:
            now = min(arrivals[-1][0] if arrivals else inf, self._ends[0][0] if self._ends else inf, tick)
            touched = dict.fromkeys(self._end_jobs(now))
            while arrivals and arrivals[-1][0] <= now:
                _, job, scheduler = arrivals.pop()
                self._submit(job, scheduler, now)
                touched[scheduler] = None
            if now >= tick:
                touched.update(dict.fromkeys(self.schedulers.values()))
            for scheduler in touched:
                self._decide(scheduler, now)
            if (self.policy.changes or self.policy.preempts) and not now < tick < inf:
                tick = now + TICK_SECONDS
        self._check_ended()
        return list(self.jobs.values())

    def _check_ended(self) -> None:
        """Raise UsageError if the policy never let some jobs start."""
        held = [job.job.request.id for job in self.jobs.values() if job.ended == inf]
        if held:
            name = self.policy.name or type(self.policy).__name__
            message = (
                f"the policy {name} never starts {len(held)} jobs, among them {held[0]}: see `check_policy`"
            )
            raise UsageError(message, "jobs_held_back", policy=name, jobs=len(held))

    def _scheduler_of(self, job: ReplayedJob) -> Scheduler:
        """Return the scheduler of a job. Raise UsageError if no machines can hold the job."""
        request = job.job.request
        scheduler = self.schedulers.get("") or self.schedulers.get(request.virtual_cluster)
        if scheduler is None:
            raise UsageError(
                f"job {request.id} belongs to the virtual cluster {request.virtual_cluster!r}, which has no machines",
                "no_machines",
                job=request.id,
                virtual_cluster=request.virtual_cluster,
            )
        if not scheduler.could_hold(request):
            raise UsageError(
                f"job {request.id} needs {counted(request.gpus, 'GPU')} and {counted(request.cpus, 'core')}, which the "
                f"machines of the virtual cluster {request.virtual_cluster!r} do not have together",
                "job_too_large",
                job=request.id,
                gpus=request.gpus,
                cpus=request.cpus,
            )
        return scheduler

    def _end_jobs(self, now: float) -> Iterator[Scheduler]:
        """End the jobs whose time has come. Yield their schedulers."""
        while self._ends and self._ends[0][0] <= now:
            _, _, job, scheduler, attempt = heappop(self._ends)
            if job.since is None or attempt != job.attempts:
                continue  # this attempt was preempted
            job.intervals.append((job.since, now))
            job.since, job.ended = None, now
            request = job.job.request
            scheduler.note(JobFinished(now, request.id, attempt))
            if self.observe is not None:
                self.observe(request, job.job.duration, now)
            yield scheduler

    def _submit(self, job: ReplayedJob, scheduler: Scheduler, now: float) -> None:
        predicted = job.job.duration if self.predict is None else self.predict(job.job, now)
        scheduler.note(JobSubmitted(now, job.job.request, predicted))

    def _decide(self, scheduler: Scheduler, now: float) -> None:
        """Carry out decisions until there are none. A preempted job stops at once."""
        preempted = True
        while preempted:
            commands, preempted = scheduler.decide(now), False
            scheduler.check_policy_works()
            for command in commands:
                match command:
                    case StartJob(name, attempt):
                        self._start(self.jobs[name], scheduler, attempt, now)
                    case PreemptJob(name, attempt):
                        scheduler.note(JobStopped(now, name, attempt, self._preempt(self.jobs[name], now)))
                        preempted = True

    def _start(self, job: ReplayedJob, scheduler: Scheduler, attempt: int, now: float) -> None:
        job.started = min(job.started, now)
        job.attempts, job.since = attempt, now
        self._started += 1
        heappush(self._ends, (now + job.remaining, self._started, job, scheduler, attempt))

    def _preempt(self, job: ReplayedJob, now: float) -> float:
        """Preempt a job, and return the seconds of its attempt that count."""
        assert job.since is not None
        kept = now - job.since - preemption_seconds(job.job.request.gpus)
        job.remaining -= kept
        job.intervals.append((job.since, now))
        job.since = None
        return kept
