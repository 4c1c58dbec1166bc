"""Errors of runs without progress: no machine can return, or all are lost before they complete a task."""

from collections.abc import Sequence

from oddlot.core.support.errors import JobError
from oddlot.core.tasks import NodeId

MAX_ATTEMPTS = 1_000
"""Consecutive attempts without a completed task until the run fails. Each machine adds 10."""


class StallChecks:
    """Counts attempts since the last completed task. Raises JobError if there are too many of one kind."""

    def __init__(self, machines: int) -> None:
        self.max_attempts = MAX_ATTEMPTS + 10 * machines
        self.lost_workers = 0
        self.lost_starts = 0
        self.last_lost_start = ("", 0.0)
        """The worker that was lost last while it started, and the seconds that it needs to start."""
        self.barred_orders = 0
        """Number of orders of a machine that was barred although its zone had capacity."""

    def task_completed(self) -> None:
        """Reset all counts."""
        self.lost_workers = self.lost_starts = self.barred_orders = 0

    def joined(self) -> None:
        """Reset the counts of machines that did not become ready."""
        self.lost_starts = self.barred_orders = 0

    def start_lost(self, node: NodeId, seconds_to_start: float) -> None:
        """Count a machine that was lost while it started."""
        self.lost_starts += 1
        self.last_lost_start = node, seconds_to_start

    def worker_lost(self, node: NodeId, lived: float, needs: float) -> None:
        """Count a worker that was lost `lived` seconds after it joined, during a task of `needs` seconds.

        Raise JobError if too many were lost.
        """
        self.lost_workers += 1
        if self.lost_workers > self.max_attempts:
            raise JobError(
                f"{self.lost_workers:,} workers in a row were lost before any task was completed. The last one, "
                f"{node}, was lost after {lived:.3g} s, and its task needs {needs:.3g} s. Increase the lifetime, or "
                "decrease seconds_per_sample or the batch size",
                "lifetimes_too_short",
                workers=self.lost_workers,
                node=node,
                lived=lived,
                needs=needs,
            )

    def check_order(self, is_first: bool) -> None:
        """Raise JobError if too many starts or orders have failed. A machine's first order is always allowed."""
        if not is_first and self.lost_starts > self.max_attempts:
            node, seconds = self.last_lost_start
            raise JobError(
                f"{self.lost_starts:,} machines in a row were preempted while starting (last: {node}). Decrease "
                f"seconds_to_start = {seconds:g}, or use a capacity that lasts longer",
                "lost_while_starting",
                starts=self.lost_starts,
                node=node,
                seconds_to_start=seconds,
            )
        if self.barred_orders > self.max_attempts:
            raise JobError(
                "the zones and the injected capacity were never available at the same time, in "
                f"{self.barred_orders:,} attempts without a completed task. Use capacities that last longer",
                "capacities_never_overlap",
                times=self.barred_orders,
            )


def stalled(seconds: float, machines: int, traces: Sequence[str] = ()) -> JobError:
    """Return the error of a run without machines that can return.

    `traces` are the names of zones with an ended trace, and `chaos` if the trace of the fault injection has ended.
    """
    message = f"the simulation stalled at t = {seconds:.1f} s: {machines} machines are left and none is due to return. "
    if traces:
        message += (
            f"The capacity trace of {', '.join(traces)} has ended: set repeat_hours to repeat it, "
            "begin_hours to start elsewhere in it, or add machines"
        )
    else:
        message += "Set seconds_to_return or add machines"
    return JobError(message, "stalled", seconds=seconds, machines=machines, traces=[*traces])
