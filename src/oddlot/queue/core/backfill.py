"""Backfilling: jobs start early if they do not delay the first one that does not fit (EASY, Lifka 1995)."""

from collections.abc import Iterable
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

    def placed(self, pool: MachinePool, shape: Shape) -> tuple[Placement | None, bool]:
        """Return where a job of a shape fits now, and whether the first job still fits if it stays there.

        `pool`: what is free now.
        """
        placement = pool.place(*shape)
        if placement is None or self._allows(placement):
            return placement, placement is not None
        reserved = self.room.place(*self.shape) or ()
        beside = pool.place(*shape, without=[part.machine for part in reserved])
        return (placement, False) if beside is None else (beside, True)

    def _allows(self, placement: Placement) -> bool:
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
    line: WaitingLine, pool: MachinePool, reservation: Reservation, now: float
) -> tuple[QueuedJob, Placement] | None:
    """Return the first job in the line that may start now, and where. The reservation counts it, if it still runs then.

    `pool`: what is free now.
    """
    until = reservation.at - now
    best: tuple[tuple[Key, QueuedJob], Placement] | None = None
    for shape, entries in line.by_shape.items():
        placement, harmless = reservation.placed(pool, shape)
        if placement is None or (not harmless and line.shortest_seconds(shape) > until):
            continue
        for entry in entries:
            if best is not None and entry >= best[0]:
                break
            if harmless or entry[1].predicted - entry[1].served <= until:
                best = entry, placement
                break
    if best is None:
        return None
    (_, job), placement = best
    if job.predicted - job.served > until:
        reservation.room.take(placement)
    return job, placement
