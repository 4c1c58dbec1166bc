"""The queue: it connects the scheduler, the database, the predictor and the processes.

Every change is committed before it is acknowledged or acted on. A new service recovers from the database and from the
processes of the previous one, which may have been killed at any point.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from time import time

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.commands import CancelJob, Command, PreemptJob, StartJob
from oddlot.queue.core.events import (
    ClockTicked,
    Event,
    JobCancelled,
    JobEstimated,
    JobStarted,
    JobStopped,
    JobSubmitted,
)
from oddlot.queue.core.jobs import Placement
from oddlot.queue.core.scheduler import Scheduler
from oddlot.queue.predict.predictor import Predictor
from oddlot.queue.server.admission import check_order, check_size
from oddlot.queue.server.attempt_ends import AttemptEnds
from oddlot.queue.server.database import DiskFull
from oddlot.queue.server.expected_ranges import ExpectedRange, expected_ranges
from oddlot.queue.server.failed_starts import RETRY_SECONDS
from oddlot.queue.server.job_store import CANCEL, AttemptRow, Job, JobStore, State, request_of
from oddlot.queue.server.prediction import predicted
from oddlot.queue.server.processes import CannotStart, Found, Result, Runner
from oddlot.queue.server.resources import Devices
from oddlot.queue.server.submission import Submission

TICK_SECONDS = 0.1
CLOCK_SECONDS, PREEMPTION_SECONDS = 2.0, 60.0
"""Seconds between two decisions without an event, for a policy without and with preemption."""
MAX_ESTIMATED = 500
"""Number of pending jobs that get new predictions when a job has finished."""
EXPECTED_SECONDS = 2.0
"""Seconds for which expected times are kept if nothing changes."""
EXPECTED_SHARE = 5.0
"""Expected times are kept for at least this multiple of the time that they took."""
log = logging.getLogger("oddlot.queue")


class UnknownJob(UsageError):
    """There is no job with this number."""

    code = "unknown_job"

    def __init__(self, job: int) -> None:
        super().__init__(f"there is no job {job}: see `oddlot queue ls --all`", job=job)


class UnknownAttempt(UsageError):
    """The job has no attempt with this number."""

    code = "unknown_attempt"

    def __init__(self, job: int, attempt: int) -> None:
        message = f"the job has no attempt {attempt}: see `oddlot queue show`"
        super().__init__(message, job=job, attempt=attempt)


class QueueService:
    """A queue of jobs. Its methods may be called from any thread.

    Parameters
    ----------
    store
        The database.
    scheduler
        A scheduler with this machine, and without jobs.
    runner
        Starts and stops attempts.
    devices
        GPUs and cores of this machine, all of them free.
    predictor
        Predicts durations. It has seen the history.
    clock
        Returns the time in seconds since 1970.
    """

    def __init__(
        self,
        store: JobStore,
        scheduler: Scheduler,
        runner: Runner,
        devices: Devices,
        predictor: Predictor,
        clock: Callable[[], float] = time,
    ) -> None:
        self.store, self.scheduler, self.runner = store, scheduler, runner
        self.devices, self.predictor, self.clock = devices, predictor, clock
        self.lock = threading.RLock()
        self.jobs: dict[int, Job] = {}
        """Jobs that have not ended, as in the database."""
        self.running: dict[int, AttemptRow] = {}
        """Attempts that have not ended, by job."""
        self.later: list[tuple[float, Event]] = []
        """Events that the scheduler gets at a later time."""
        self.to_preempt: set[tuple[int, int]] = set()
        """Attempts that must stop as soon as the database can note it."""
        self.to_cancel: set[int] = set()
        """Running jobs with a cancellation that the database has not noted."""
        self.ends = AttemptEnds(store, runner, clock)
        self.held_back: set[str] = set()
        """Jobs for which a failure of the policy has been logged."""
        self.changed = 0
        """Number of changes since the start."""
        self._expecting = threading.Lock()
        self._expected: tuple[int, float, float, dict[int, ExpectedRange]] = (-1, 0.0, 0.0, {})
        self._clock_at = self._stops_at = 0.0
        self.clock_seconds = PREEMPTION_SECONDS if scheduler.policy.preempts else CLOCK_SECONDS
        self._recover()

    # --- requests ------------------------------------------------------------------------------

    def submit(self, user: str, asked: Submission) -> Job:
        """Add a job, and return it. A submission with a known id returns its job. Raise JobTooLarge,
        PolicyFailed or DiskFull.
        """
        with self.lock:
            check_size(self.scheduler, asked)
            now = self.clock()
            request = request_of(user, asked, now, self.store.next_id())
            prediction = predicted(self.predictor, request, now, asked.estimate)
            check_order(self.scheduler, request, prediction[0], now)
            job, is_new = self.store.add(user, asked, now, prediction)
            if is_new:
                self.jobs[job.id] = job
                self._note(self._submitted(job))
            return self.job(job.id)

    def cancel(self, job: int) -> Job:
        """Cancel a job. A running one gets SIGTERM, also if the disk is full. Raise UnknownJob or DiskFull."""
        with self.lock:
            found = self.job(job)
            if found.state in {State.PENDING, State.RUNNING} and not found.cancelled:
                now = self.clock()
                try:
                    self.store.cancel(found, now)
                except DiskFull as error:
                    if job not in self.running:
                        raise
                    self._cancel_unrecorded(found, error)
                else:
                    self._reload(job)
                self._note(JobCancelled(now, str(job)))
            return self.job(job)

    def _cancel_unrecorded(self, job: Job, error: DiskFull) -> None:
        """Cancel a running job in memory: its end may free the disk."""
        log.warning("the cancellation of job %d is not recorded yet: %s", job.id, error)
        reason = f"cancelled, which is not recorded yet: {error}"
        self.jobs[job.id] = replace(job, cancelled=True, reason=reason)
        self.running[job.id] = replace(self.running[job.id], stop=CANCEL)
        self.to_cancel.add(job.id)

    def ran(self, jobs: Iterable[int]) -> dict[int, float]:
        """Return the seconds that jobs have run, by id: the sum over their attempts."""
        with self.lock:
            found, now = self.store.seconds_run(jobs), self.clock()
            for job, attempt in self.running.items():
                found[job] = found.get(job, 0.0) + attempt.ran(now)
            return found

    def job(self, job: int) -> Job:
        """Return a job. Raise UnknownJob."""
        with self.lock:
            try:
                return self.jobs.get(job) or self.store.job(job)
            except (KeyError, OverflowError):
                raise UnknownJob(job) from None

    def expected(self) -> dict[int, ExpectedRange]:
        """Return the expected times of the open jobs, without the last ones of a long queue."""
        with self._expecting:
            with self.lock:
                version, at, until, found = self._expected
                now = self.clock()
                is_new = version == self.changed and now - at < EXPECTED_SECONDS
                if is_new or now < until:
                    return found
                version, jobs, scheduler = self.changed, list(self.jobs.values()), deepcopy(self.scheduler)
            # Requests of others need not wait for it.
            found = expected_ranges(scheduler, jobs, now, self.runner.grace)
            took = self.clock() - now
            self._expected = version, now, now + took * EXPECTED_SHARE, found
            return found

    # --- time ----------------------------------------------------------------------------------

    def run(self, stopped: threading.Event) -> None:
        """Follow the attempts until `stopped` is set. A full disk delays changes."""
        while not stopped.wait(TICK_SECONDS):
            try:
                self.tick()
            except DiskFull as error:
                log.warning("%s", error)
                stopped.wait(1.0)

    def tick(self) -> None:
        """Look at the attempts, and decide."""
        with self.lock:
            now = self.clock()
            due = [event for at, event in self.later if at <= now]
            self.later = [(at, event) for at, event in self.later if at > now]
            for event in due:
                self._note(event)
            if now - self._stops_at >= 1.0:  # before the ends, which a full disk cannot note
                self._stops_at = now
                self._stop_again()
            for job in list(self.running):
                attempt = self.running[job]  # the end of another job may have stopped it just now
                found, result = self.runner.find(attempt)
                if found is not Found.RUNNING:
                    self._ended(attempt, found, result)
            if now - self._clock_at >= self.clock_seconds:
                self._clock_at = now
                self._perform(self.scheduler.handle(ClockTicked(now)))

    def _stop_again(self) -> None:
        """Stop attempts again whose process had not started yet, or that the database could not note."""
        for job, number in list(self.to_preempt):
            self._preempt(job, number)
        for job in list(self.to_cancel):
            self._record_cancellation(job)
        for attempt in self.running.values():
            if attempt.stop:
                self.runner.stop(attempt)

    def _record_cancellation(self, job: int) -> None:
        """Commit a cancellation that a full disk has delayed."""
        if found := self.jobs.get(job):
            try:
                self.store.cancel(found, self.clock())
            except DiskFull:
                return
            self._reload(job)
        self.to_cancel.discard(job)

    # --- recovery ------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Take over the jobs of the database, and the attempts that still run or have ended since."""
        now = self.clock()
        self.jobs = {job.id: job for job in self.store.open_jobs()}
        self.running = {attempt.job: attempt for attempt in self.store.running_attempts()}
        self._estimate(list(self.jobs.values()))
        for job in self.jobs.values():
            self.scheduler.note(self._submitted(job))
        for attempt in self.running.values():
            name, placement = str(attempt.job), self._here(attempt.placement)
            self.devices.remove(attempt.gpus, attempt.cores)
            self.scheduler.note(JobStarted(attempt.created, name, attempt.attempt, placement))
            if self.jobs[attempt.job].cancelled:
                self.scheduler.note(JobCancelled(now, name))

    def _here(self, placement: Placement) -> Placement:
        """Return a placement with the present name of this machine."""
        known = list(self.scheduler.pool.machines)
        return tuple(part if part.machine in known else replace(part, machine=known[0]) for part in placement)

    def _submitted(self, job: Job) -> JobSubmitted:
        return JobSubmitted(self.clock(), job.job_request, job.predicted, job.attempt, job.served)

    # --- ends of attempts ----------------------------------------------------------------------

    def _ended(self, attempt: AttemptRow, found: Found, result: Result | None) -> None:
        """Commit the end of an attempt, and tell the scheduler."""
        job = self.jobs[attempt.job]
        event, after, duration = self.ends.commit(job, attempt, found, result)
        self.devices.give_back(attempt.gpus, attempt.cores)
        del self.running[job.id]
        self._reload(job.id)
        if duration is not None:
            self._learn(job, duration, event.at)
        if after:
            self.later.append((event.at + after, event))
        else:
            self._note(event)

    # --- decisions -----------------------------------------------------------------------------

    def _note(self, event: Event) -> None:
        self.changed += 1
        self._perform(self.scheduler.handle(event))

    def _perform(self, commands: Iterable[Command]) -> None:
        self._log_failures()
        for command in commands:
            self.changed += 1
            match command:
                case StartJob():
                    self._start(command)
                case PreemptJob(name, number):
                    self._preempt(int(name), number)
                case CancelJob(name, number):
                    self._stop(int(name), number)
                case _:
                    pass

    def _log_failures(self) -> None:
        """Log once for which jobs the policy has failed. They are held back."""
        failures = self.scheduler.failures
        for job in failures.keys() - self.held_back:
            log.error("job %s is held back: %s", job, failures[job])
        self.held_back = set(failures)

    def _start(self, command: StartJob) -> None:
        """Commit an attempt, then start it."""
        job, now = self.jobs[int(command.job)], self.clock()
        gpus, cores = self.devices.take(command.placement)
        self.runner.prepare(job.id, command.attempt, now)
        try:
            self.store.start(job.id, command.attempt, command.placement, gpus, cores, now)
        except DiskFull as error:
            log.warning("job %d waits: %s", job.id, error)
            self.devices.give_back(gpus, cores)
            self.runner.discard(job.id, command.attempt, now)
            again = JobStopped(now + RETRY_SECONDS, command.job, command.attempt)
            self.later.append((now + RETRY_SECONDS, again))
            return
        self._reload(job.id)
        attempt = self.store.attempt(job.id, command.attempt)
        self.running[job.id] = attempt
        try:
            self.runner.start(self.jobs[job.id], attempt)
        except CannotStart as error:
            log.warning("job %d cannot be started: %s", job.id, error)
            self.ends.failed_starts.note(job.id, error)

    def _preempt(self, job: int, number: int) -> None:
        """Commit that an attempt must stop, then stop it."""
        try:
            self.store.preempt(job, number)
        except DiskFull as error:
            log.warning("job %d is not preempted yet: %s", job, error)
            self.to_preempt.add((job, number))
        else:
            self.to_preempt.discard((job, number))
            self._stop(job, number)

    def _stop(self, job: int, number: int) -> None:
        """Stop an attempt, after the database has noted it."""
        attempt = self.running.get(job)
        if attempt is not None and attempt.attempt == number:
            if not attempt.stop:
                self.running[job] = self.store.attempt(job, number)
            self.runner.stop(attempt)

    # --- predictions ---------------------------------------------------------------------------

    def _estimate(self, jobs: Iterable[Job]) -> None:
        """Predict the durations of jobs again."""
        found = {}
        for job in jobs:
            estimate = job.submitted_command.estimate
            found[job.id] = predicted(self.predictor, job.job_request, self.clock(), estimate)
            seconds, low, high = found[job.id]
            self.jobs[job.id] = replace(job, predicted=seconds, low=low, high=high)
        try:
            self.store.predict(found)
        except DiskFull as error:
            log.warning("%s", error)

    def _learn(self, job: Job, duration: float, now: float) -> None:
        """Report a job that has ended by itself to the predictor, and predict the pending jobs again."""
        self.predictor.observe(job.job_request, duration, now)
        pending = [one for one in self.jobs.values() if one.state is State.PENDING][:MAX_ESTIMATED]
        self._estimate(pending)
        for one in pending:
            self.scheduler.note(JobEstimated(now, str(one.id), self.jobs[one.id].predicted))

    def _reload(self, job: int) -> None:
        """Read a job from the database again."""
        found = self.store.job(job)
        if found.state in {State.PENDING, State.RUNNING}:
            self.jobs[job] = found
        else:
            self.jobs.pop(job, None)
            self.ends.failed_starts.forget(job)
