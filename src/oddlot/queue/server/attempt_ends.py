"""What the end of an attempt means for its job: it has finished, failed or was cancelled, or it starts again."""

from collections.abc import Callable

from oddlot.queue.core.events import JobFailed, JobFinished, JobStopped
from oddlot.queue.server.failed_starts import FailedStarts
from oddlot.queue.server.job_store import CANCEL, PREEMPT, AttemptRow, Job, JobStore, State
from oddlot.queue.server.processes import Found, Result, Runner

End = JobFinished | JobFailed | JobStopped


class AttemptEnds:
    """Commits the ends of attempts.

    Parameters
    ----------
    store
        The database.
    runner
        Finds the last output of a lost attempt.
    clock
        Returns the time in seconds since 1970.
    """

    def __init__(self, store: JobStore, runner: Runner, clock: Callable[[], float]) -> None:
        self.store, self.runner, self.clock = store, runner, clock
        self.failed_starts = FailedStarts()

    def commit(
        self, job: Job, attempt: AttemptRow, found: Found, result: Result | None
    ) -> tuple[End, float, float | None]:
        """Commit the end of an attempt. Raise DiskFull.

        Return the event, the seconds after which the scheduler gets it, and the job's duration in seconds if the
        predictor learns it: jobs that were cancelled, lost or ended by a signal would have run longer.
        """
        now, name, number = self.clock(), str(job.id), attempt.attempt
        ended = result.ended if result else now
        ran = attempt.ran(ended)
        if job.cancelled or attempt.stop == CANCEL:
            self.store.end(job, number, State.CANCELLED, ended, code=result.exit if result else None)
            return JobStopped(now, name, number), 0.0, None
        if found is Found.ABSENT:
            return *self._not_started(job, number), None
        self.failed_starts.forget(job.id)
        if result is None:
            return *self._lost(job, attempt, ended), None
        duration = job.served + ran if result.ended_by_itself else None
        if result.exit == 0:
            self.store.end(job, number, State.FINISHED, ended, code=0, duration=duration)
            return JobFinished(now, name, number), 0.0, duration
        if attempt.stop == PREEMPT:
            kept = ran if job.restarts else 0.0
            self.store.end(job, number, State.PREEMPTED, ended, code=result.exit, kept=kept)
            return JobStopped(now, name, number, kept), 0.0, None
        reason = result.error or (f"ended by signal {result.exit - 128}" if result.exit > 128 else "")
        self.store.end(job, number, State.FAILED, ended, code=result.exit, reason=reason, duration=duration)
        return JobFailed(now, name, number), 0.0, duration

    def _lost(self, job: Job, attempt: AttemptRow, ended: float) -> tuple[End, float]:
        """Commit a loss. A training keeps its work up to its last output, since checkpoints are not known here."""
        now, reason = self.clock(), "lost: its processes ended without an exit code"
        number = attempt.attempt
        if job.restarts:
            kept = attempt.ran(min(ended, self.runner.last_output(attempt))) if job.trains else 0.0
            self.store.end(job, number, State.LOST, ended, reason=reason, kept=kept)
            return JobStopped(now, str(job.id), number, kept), 0.0
        self.store.end(job, number, State.LOST, ended, reason=reason)
        return JobFailed(now, str(job.id), number), 0.0

    def _not_started(self, job: Job, number: int) -> tuple[End, float]:
        now = self.clock()
        reason, pause = self.failed_starts.add(job.id)
        if pause is None:
            self.store.end(job, number, State.FAILED, now, reason=f"cannot be started: {reason}")
            return JobFailed(now, str(job.id), number), 0.0
        self.store.end(job, number, State.VOID, now, reason=reason, kept=0.0)
        return JobStopped(now, str(job.id), number), pause
