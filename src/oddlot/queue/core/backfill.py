"""Backfilling: jobs start early if they do not delay the first one that does not fit (EASY, Lifka 1995)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oddlot.queue.core.jobs import Placement, QueuedJob
from oddlot.queue.core.machines import MachinePool
from oddlot.queue.core.waiting_line import Key, Shape, WaitingLine


@dataclass(slots=True)
class Reservation:
    """When the first job can start at the latest, if the predictions are right."""

    at: float
    """Time of that start, in seconds."""
    room: MachinePool
    """What is free then, before it starts."""
    shape: Shape

    def allows(self, placement: Placement) -> bool:
        """Return whether the first job still fits if this placement is used at that time."""
        self.room.take(placement)
        fits = self.room.place(*self.shape) is not None
        self.room.free(placement)
        return fits


def reserve(
    pool: MachinePool, running: Iterable[tuple[float, QueuedJob]], job: QueuedJob, now: float
) -> Reservation | None:
    """Return the reservation of a job, or None if it never fits.

    `pool`: what is free now. `running`: expected ends in seconds, ascending, with their jobs.
    """
    room = pool.copy()
    for end, other in running:
        room.free(other.placement)
        if room.place(*job.request.shape) is not None:
            return Reservation(max(now, end), room, job.request.shape)
    return None


def best_backfill(
    line: WaitingLine, placements: Mapping[Shape, Placement], reservation: Reservation, now: float
) -> QueuedJob | None:
    """Return the first job in the line that may start now. The reservation counts it, if it still runs then.

    `placements`: where a job of each shape would run.
    """
    until = reservation.at - now
    best: tuple[Key, QueuedJob] | None = None
    for shape, placement in placements.items():
        harmless = reservation.allows(placement)
        if not harmless and line.shortest_seconds(shape) > until:
            continue
        for entry in line.by_shape[shape]:
            if best is not None and entry >= best:
                break
            if harmless or entry[1].predicted - entry[1].served <= until:
                best = entry
                break
    if best is None:
        return None
    job = best[1]
    if job.predicted - job.served > until:
        reservation.room.take(placements[job.request.shape])
    return job
