"""Jobs as JSON objects, for the API."""

from typing import Any

from oddlot.queue.server.expected_ranges import ExpectedRange
from oddlot.queue.server.job_store import AttemptRow, Job, State
from oddlot.queue.server.training_command import job_name


def brief(
    job: Job, now: float, expected: ExpectedRange | None, attempt: AttemptRow | None, ran: float, *, own: bool
) -> dict[str, Any]:
    """Return a job for a list. Times in seconds since 1970.

    `attempt`: its running attempt. `ran`: seconds of all of its attempts. It has waited for the rest of the time.
    `own`: with its reason, and a name from its whole command. Both may have arguments and paths.
    """
    asked = job.job_request
    is_stopping = attempt is not None and (job.cancelled or attempt.stop)
    return {
        "id": job.id,
        "user": job.user,
        "name": asked.name if own else _public_name(job),
        "virtual_cluster": asked.virtual_cluster,
        "state": "stopping" if is_stopping else str(job.state),
        "gpus": asked.gpus,
        "cpus": asked.cpus,
        "submitted": job.submitted,
        "started": job.started,
        "ended": job.ended,
        "waiting_seconds": max(0.0, (job.ended or now) - job.submitted - ran),
        "ran_seconds": ran,
        "predicted_seconds": job.predicted,
        "predicted_range": [job.low, job.high],
        "expected_start": list(expected.start) if expected else None,
        "expected_end": list(expected.end) if expected else None,
        "attempt": job.attempt,
        "exit": job.exit,
        "reason": job.reason if own else "",
    }


def full(
    job: Job, now: float, expected: ExpectedRange | None, attempts: list[AttemptRow], ran: float, *, own: bool
) -> dict[str, Any]:
    """Return everything about a job. `own`: with its command, environment, working folder and reasons."""
    running = next((one for one in attempts if one.state is State.RUNNING), None)
    shown = brief(job, now, expected, running, ran, own=own)
    asked = job.submitted_command
    shown |= {"requeue": job.restarts, "estimate": asked.estimate, "served_seconds": job.served}
    if own:
        shown |= {"command": asked.command, "cwd": asked.cwd, "limits": asked.limits, "env": asked.env}
    shown["attempts"] = [
        {
            "attempt": one.attempt,
            "state": str(one.state),
            "machines": [part.machine for part in one.placement],
            "gpus": list(one.gpus),
            "cores": list(one.cores),
            "started": one.created,
            "ended": one.ended,
            "stop": one.stop,
            "exit": one.exit,
            "reason": one.reason if own else "",
        }
        for one in attempts
    ]
    return shown


def _public_name(job: Job) -> str:
    """Return the name that the user has chosen, or else the program without its folder and arguments."""
    asked = job.submitted_command
    is_chosen = asked.name not in {"", job_name(asked.command)}
    return asked.name if is_chosen else job_name(asked.command[:1])
