"""Which jobs a queue accepts."""

from typing import Any

from oddlot.core.support.errors import UsageError
from oddlot.core.support.text import counted
from oddlot.queue.core.jobs import JobRequest, QueuedJob
from oddlot.queue.core.policy import priority_of
from oddlot.queue.core.scheduler import Scheduler
from oddlot.queue.server.submission import Submission


class JobTooLarge(UsageError):
    """No machine can run a job of this size."""

    code = "job_too_large"


def check_size(scheduler: Scheduler, asked: Submission) -> None:
    """Raise JobTooLarge if a job does not fit on the empty machines."""
    pool = scheduler.pool.emptied()
    if pool.place(asked.gpus, asked.cpus) is not None:
        return
    gpus = sum(machine.gpus for machine in pool.machines.values())
    cpus = max((machine.cpus for machine in pool.machines.values()), default=0)
    message = (
        f"the job needs {counted(asked.gpus, 'GPU')} and {counted(asked.cpus, 'core')}, and the queue has "
        f"{counted(gpus, 'GPU')} and {counted(cpus, 'core')}: ask for less"
    )
    fields: dict[str, Any] = {
        "gpus": asked.gpus,
        "cpus": asked.cpus,
        "machine_gpus": gpus,
        "machine_cpus": cpus,
    }
    raise JobTooLarge(message, **fields)


def check_order(scheduler: Scheduler, request: JobRequest, predicted: float, now: float) -> None:
    """Raise PolicyFailed if the policy cannot order a job with a predicted duration in seconds."""
    priority_of(scheduler.policy, QueuedJob(request, predicted, 0), now, scheduler.usage.at(now))
