"""Which running jobs make room for a pending one."""

from collections.abc import Iterable, Sequence

from oddlot.queue.core.jobs import QueuedJob
from oddlot.queue.core.machines import MachinePool
from oddlot.queue.core.waiting_line import Shape


def jobs_to_preempt(
    pool: MachinePool, stopping: Iterable[QueuedJob], running: Sequence[QueuedJob], shape: Shape
) -> list[QueuedJob] | None:
    """Return the running jobs to preempt so that a job of this shape fits, or None if it does not fit even then.

    `pool`: what is free now. `stopping`: jobs that have been told to stop, whose machines count as free. `running`:
    jobs that may be preempted, the first to go first.
    """
    room = pool.copy()
    for job in stopping:
        room.free(job.placement)
    for count in range(len(running) + 1):
        if count:
            room.free(running[count - 1].placement)
        placement = room.place(*shape)
        if placement is not None:
            used = {part.machine for part in placement}
            return [job for job in running[:count] if any(part.machine in used for part in job.placement)]
    return None
