"""A buying policy with the work and the measured speed of a run. Shared by the engines that carry it out."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from oddlot.core.support.errors import UsageError
from oddlot.core.support.text import duration
from oddlot.core.support.user_warnings import warn
from oddlot.machines.buying import Buying, Situation, Work

NOMINAL_SHARE = 0.02
"""Share of the work that counts as done at the nominal speed, so that the first tasks do not decide the measured
speed."""
SMALLEST = 1e-9
"""Smallest divisor."""
AVERAGED_TASKS = 20
"""Number of tasks in the moving average of their times."""


@dataclass(frozen=True)
class BuyingPlan:
    """A buying policy and the work of the run."""

    buying: Buying
    work: Work
    batch: int
    """Samples of a minibatch."""

    @classmethod
    def of(
        cls, buying: Buying | None, work_of: Callable[[float | None], Work | None] | None, batch: int
    ) -> "BuyingPlan | None":
        """Return the plan of a policy, or None without a policy. Raise UsageError if the work of the run is unknown.

        `work_of` returns the work, given the expected number of epochs if it is set.
        """
        if buying is None:
            return None
        work = work_of(buying.epochs) if work_of else None
        if work is None:
            message = (
                "the buying policy needs the work of the run, and the goal has no epochs, samples or versions: set "
                "`buying.epochs` to the expected number of epochs"
            )
            raise UsageError(message, "unknown_work", "buying.epochs")
        return cls(buying, work, batch)

    @property
    def remaining(self) -> float:
        """Return the number of samples until the goal."""
        return max(0.0, self.work.samples - self.work.done())

    def check(self, now: float, needed: float) -> bool:
        """Warn if the deadline has passed, or if it is in less than `needed` seconds. Return whether it warned.

        `needed` are the seconds that the run needs with all machines on demand.
        """
        deadline = self.buying.deadline_seconds
        if now >= deadline:
            message = (
                f"the deadline of {duration(deadline)} has passed: the run is at {duration(now)}. Missing "
                "spot machines are replaced on demand immediately. Increase deadline_hours to wait for them"
            )
            warn(message, "deadline_passed", deadline=deadline, now=now)
            return True
        if needed > deadline - now:
            message = (
                f"the deadline is in {duration(deadline - now)}, but the run needs at least {duration(needed)} with "
                "all machines on demand. Missing spot machines are replaced on demand immediately. Increase "
                "deadline_hours, or add machines"
            )
            warn(message, "deadline_too_short", deadline=deadline, needed=needed)
            return True
        return False


class Progress:
    """Measures the speed of a run relative to a nominal speed, and describes the run to its buying policy."""

    def __init__(
        self, plan: BuyingPlan, now: float, full_speed: float, task_seconds: float, is_upper: bool
    ) -> None:
        self.plan = plan
        self.full_speed = full_speed
        """Nominal samples per second of all machines."""
        self.task_seconds = task_seconds
        """Moving average of the computation time of a task."""
        self.most = 1.0 if is_upper else inf
        """Highest measured speed, relative to the nominal speed. 1: the nominal speed is an upper limit."""
        self.done_before = plan.work.done()
        self.possible, self.counted_to = 0.0, now
        """Samples that the ready machines could have computed at the nominal speed, until a time."""
        self.ready_speed = 0.0
        """Nominal samples per second of the machines that are ready since `counted_to`."""

    def task_ended(self, seconds: float) -> None:
        """Record the computation time of a task."""
        self.task_seconds += (seconds - self.task_seconds) / AVERAGED_TASKS

    def count(self, now: float) -> None:
        """Count the time until now for the machines that were ready."""
        self.possible += self.ready_speed * (now - self.counted_to)
        self.counted_to = now

    @property
    def seconds_needed(self) -> float:
        """Return the seconds that the remaining work takes on all machines, at the measured speed."""
        return self.plan.remaining / (self.full_speed * self._efficiency(self._nominal))

    @property
    def measured_seconds_needed(self) -> float | None:
        """Return `seconds_needed` regardless of the nominal speed, or None if too little work has been done."""
        if self._merged < self._nominal:
            return None
        return self.plan.remaining / (self.full_speed * self._efficiency(0.0))

    def situation(self, now: float, pause: float, changeover: float, count: int) -> Situation:
        """Return the situation of `count` requested machines, none of which is there yet.

        `pause` are the seconds until the next decision, and `changeover` the seconds that a replacement takes.
        """
        work = self.plan.work
        return Situation(
            elapsed_seconds=now,
            deadline_seconds=self.plan.buying.deadline_seconds - pause,  # the next decision may be this late
            seconds_needed=self.seconds_needed,
            share_done=min(1.0, work.done() / work.samples),
            changeover_seconds=changeover,
            count=count,
        )

    @property
    def _merged(self) -> float:
        return self.plan.work.done() - self.done_before

    @property
    def _nominal(self) -> float:
        return NOMINAL_SHARE * self.plan.work.samples

    def _efficiency(self, nominal: float) -> float:
        """Return the merged samples over the samples that the ready machines could have computed, at most `most`.

        `nominal` is the number of samples that count as done at the nominal speed.
        """
        # A task counts when it is merged. Until then, its samples are not a sign of slow machines.
        late = self.full_speed * self.task_seconds
        return min(
            self.most, (self._merged + nominal) / max(nominal, self.possible + nominal - late, SMALLEST)
        )
