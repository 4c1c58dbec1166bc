"""The scheduler: events in, commands out. It never reads a clock, a file or a random number."""

from collections.abc import Iterable, Mapping

from oddlot.queue.core.backfill import best_backfill, reserve
from oddlot.queue.core.commands import CancelJob, Command, PreemptJob, StartJob
from oddlot.queue.core.events import (
    ClockTicked,
    Event,
    JobCancelled,
    JobEstimated,
    JobFailed,
    JobFinished,
    JobStarted,
    JobStopped,
    JobSubmitted,
    MachineJoined,
    MachineLost,
)
from oddlot.queue.core.expected_ends import ExpectedEnds
from oddlot.queue.core.jobs import JobRequest, JobState, Placement, QueuedJob
from oddlot.queue.core.machines import Machine, MachinePool
from oddlot.queue.core.policy import Policy, PolicyFailed, priority_of
from oddlot.queue.core.preemption import jobs_to_preempt
from oddlot.queue.core.usage import UsageMeter
from oddlot.queue.core.waiting_line import Shape, WaitingLine

ORDER_SECONDS = 300.0
"""Interval in which priorities that change are computed again, as in Slurm's default."""


class Scheduler:
    """Starts jobs on machines in the order of a policy.

    Parameters
    ----------
    policy
        The order of jobs.
    machines
        Machines that may be used. Others join by events.
    shares
        Shares of the virtual clusters for the policy `fair_share`.
    longest_wait
        Seconds. Jobs that have waited longer come first, in the order of submission, so that no job starves. None: the
        policy alone decides.
    """

    def __init__(
        self,
        policy: Policy,
        machines: Iterable[Machine] = (),
        shares: Mapping[str, float] | None = None,
        longest_wait: float | None = None,
    ) -> None:
        self.policy, self.longest_wait = policy, longest_wait
        self.pool = MachinePool(machines)
        self.jobs: dict[str, QueuedJob] = {}
        self.line = WaitingLine()
        """Pending jobs that fit on the empty machines, and are not held back by the policy."""
        self.held: dict[int, QueuedJob] = {}
        """Pending jobs that are not in the line."""
        self.failures: dict[str, PolicyFailed] = {}
        """Jobs that are held back because the policy failed for them."""
        self.ends = ExpectedEnds()
        self.usage = UsageMeter(shares or {})
        self._cancelled: set[str] = set()
        self._numbers = 0
        self._order_at = 0.0
        """Time from which priorities that change are computed again."""
        self._fits: dict[tuple[int, int], bool] = {}
        """Whether a shape fits on the empty machines."""

    def handle(self, event: Event) -> list[Command]:
        """Take an event and decide."""
        return [*self.note(event), *self.decide(event.at)]

    def note(self, event: Event) -> list[Command]:
        """Take an event. Several events of the same time may be noted before one decision."""
        match event:
            case JobSubmitted():
                self._submitted(event)
            case JobFinished() | JobFailed():
                self._ended(event)
            case JobStarted():
                self._started(event)
            case JobStopped():
                self._stopped(event)
            case JobEstimated():
                self._estimated(event)
            case JobCancelled():
                return self._cancel(event)
            case MachineJoined(_, machine):
                self.pool.join(machine)
                self._machines_changed(event.at)
            case MachineLost():
                self._lost(event)
            case ClockTicked():
                pass
        return []

    def decide(self, now: float) -> list[Command]:
        """Return what to start and to preempt now."""
        if self.policy.changes and now >= self._order_at:
            self._order_again(now)
        self._promote(now)
        if self.policy.preempts:
            return self._start_and_preempt(now)
        commands: list[Command] = []
        while (job := self.line.first()) is not None:
            placement = self.pool.place(*job.request.shape)
            if placement is None:
                break
            commands.append(self._start(job, placement, now))
        if job is not None and self.policy.backfills:
            commands.extend(self._backfill(job, now))
        return commands

    def check_policy_works(self) -> None:
        """Raise PolicyFailed if the policy has failed for a job that waits."""
        for error in self.failures.values():
            raise error

    def could_hold(self, job: JobRequest) -> bool:
        """Return whether a job fits on the machines when they are empty."""
        if job.shape not in self._fits:
            self._fits[job.shape] = self.pool.emptied().place(*job.shape) is not None
        return self._fits[job.shape]

    # --- events --------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted) -> None:
        if event.job.id in self.jobs:
            return
        job = QueuedJob(event.job, event.predicted, self._numbers, attempt=event.attempt, served=event.served)
        self._numbers += 1
        self.jobs[event.job.id] = job
        self._wait(job, event.at)

    def _started(self, event: JobStarted) -> None:
        job = self.jobs.get(event.job)
        if job is None:
            return
        if job.state is JobState.PENDING and event.placement:
            self._leave_line(job)
            job.attempt = event.attempt - 1
            self._run(job, event.placement, event.at)
        elif job.state is JobState.RUNNING and job.attempt == event.attempt:
            self.ends.remove(job)
            job.started = event.at
            self.ends.add(job)

    def _current(self, event: JobFinished | JobFailed | JobStopped) -> QueuedJob | None:
        """Return the running job of a report, unless the report is of another attempt."""
        job = self.jobs.get(event.job)
        running = job is not None and job.state is not JobState.PENDING and job.attempt == event.attempt
        return job if running else None

    def _ended(self, event: JobFinished | JobFailed) -> None:
        if job := self._current(event):
            self._release(job, event.at)
            self._forget(job)

    def _stopped(self, event: JobStopped) -> None:
        if job := self._current(event):
            self._release(job, event.at)
            job.served += event.kept
            if event.job in self._cancelled:
                self._forget(job)
            else:
                self._wait(job, event.at)

    def _estimated(self, event: JobEstimated) -> None:
        job = self.jobs.get(event.job)
        if job is None:
            return
        if job.state is JobState.PENDING:
            self._leave_line(job)
            job.predicted = event.predicted
            self._wait(job, event.at)
        else:
            self.ends.remove(job)
            job.predicted = event.predicted
            self.ends.add(job)

    def _cancel(self, event: JobCancelled) -> list[Command]:
        job = self.jobs.get(event.job)
        if job is None or event.job in self._cancelled:
            return []
        if job.state is JobState.PENDING:
            self._leave_line(job)
            self._forget(job)
            return []
        self._cancelled.add(event.job)
        job.state = JobState.STOPPING
        return [CancelJob(event.job, job.attempt)]

    def _lost(self, event: MachineLost) -> None:
        for job in self.ends.jobs():
            if any(part.machine == event.machine for part in job.placement):
                self._stopped(JobStopped(event.at, job.request.id, job.attempt))
        self.pool.lose(event.machine)
        self._machines_changed(event.at)

    def _machines_changed(self, now: float) -> None:
        self._fits.clear()
        for job in [*self.held.values(), *self.line.jobs()]:
            self._leave_line(job)
            self._wait(job, now)

    # --- states of jobs ------------------------------------------------------------------------

    def _wait(self, job: QueuedJob, now: float) -> None:
        """Put a job into the line, or hold it back."""
        job.state = JobState.PENDING
        fits = self.could_hold(job.request)
        priority = self._priority(job, now) if fits else None
        if priority is None:
            self.held[job.number] = job
            return
        job.key = (1, priority, job.request.submitted, job.number)
        self.line.add(job)

    def _priority(self, job: QueuedJob, now: float) -> tuple[float, ...] | None:
        """Return a job's priority, or None if the policy holds it back or fails for it."""
        self.failures.pop(job.request.id, None)
        try:
            return priority_of(self.policy, job, now, self.usage.at(now))
        except PolicyFailed as error:
            self.failures[job.request.id] = error
            return None

    def _leave_line(self, job: QueuedJob) -> None:
        if self.held.pop(job.number, None) is None:
            self.line.remove(job)

    def _start(self, job: QueuedJob, placement: Placement, now: float) -> StartJob:
        self.line.remove(job)
        self._run(job, placement, now)
        return StartJob(job.request.id, job.attempt, placement)

    def _run(self, job: QueuedJob, placement: Placement, now: float) -> None:
        job.state, job.placement, job.started = JobState.RUNNING, placement, now
        job.attempt += 1
        self.pool.take(placement)
        self.ends.add(job)
        self.usage.change(job.request.virtual_cluster, job.request.units, now)

    def _release(self, job: QueuedJob, now: float) -> None:
        self.pool.free(job.placement)
        self.ends.remove(job)
        job.used += now - job.started
        job.placement = ()
        self.usage.change(job.request.virtual_cluster, -job.request.units, now)

    def _forget(self, job: QueuedJob) -> None:
        del self.jobs[job.request.id]
        self.failures.pop(job.request.id, None)
        self._cancelled.discard(job.request.id)

    # --- decisions -----------------------------------------------------------------------------

    def _order_again(self, now: float) -> None:
        self._order_at = now + ORDER_SECONDS
        pending = [*self.held.values(), *self.line.jobs()]
        self.held, self.line = {}, WaitingLine()
        for job in pending:
            self._wait(job, now)

    def _promote(self, now: float) -> None:
        """Put jobs that have waited too long in front."""
        if self.longest_wait is None:
            return
        for job in list(self.line.jobs()):
            if job.key[0] == 1 and now - job.request.submitted > self.longest_wait:
                self.line.remove(job)
                job.key = (0, (job.request.submitted,), job.request.submitted, job.number)
                self.line.add(job)

    def _backfill(self, first: QueuedJob, now: float) -> list[Command]:
        """Start jobs that do not delay the first one, if the predictions are right."""
        commands: list[Command] = []
        if not self.line.any_fits(self.pool):
            return commands
        reservation = reserve(self.pool, self.ends.all(now), first, now)
        while reservation and (chosen := best_backfill(self.line, self.pool, reservation, now)):
            commands.append(self._start(*chosen, now))
        return commands

    def _start_and_preempt(self, now: float) -> list[Command]:
        """Start jobs in their order. Preempt running ones with a larger priority for a job that does not fit."""
        commands: list[Command] = []
        too_large: set[Shape] = set()
        while (job := self.line.first(too_large)) is not None:
            shape = job.request.shape
            placement = self.pool.place(*shape)
            if placement is not None:
                commands.append(self._start(job, placement, now))
                continue
            stopping = [one for one in self.ends.jobs() if one.state is JobState.STOPPING]
            victims = jobs_to_preempt(self.pool, stopping, self._later(job, now), shape)
            if victims is not None:  # nothing else starts until their machines are free
                return [*commands, *map(self._preempt, victims)]
            too_large.add(shape)
        return commands

    def _later(self, job: QueuedJob, now: float) -> list[QueuedJob]:
        """Return the running jobs that may be preempted and have a larger priority than a job, the largest first."""
        later = []
        for one in self.ends.jobs():
            if one.state is not JobState.RUNNING or not one.request.preemptible:
                continue
            key = one.key[:2]  # a job that started because it had waited too long keeps its place in front
            if key[0] == 1:
                key = (1, self._priority(one, now))
            if key[1] is not None and key > job.key[:2]:
                later.append((key, one.number, one))
        return [one for _, _, one in sorted(later, reverse=True)]

    def _preempt(self, job: QueuedJob) -> PreemptJob:
        job.state = JobState.STOPPING
        return PreemptJob(job.request.id, job.attempt)
