"""The options of a plan, and their ranking."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import median
from typing import NamedTuple

from oddlot.planner.candidates import Candidate, Setup
from oddlot.planner.prediction import Minimize
from oddlot.train.job import Job
from oddlot.train.lr_schedules import MultiStep

HALF = 0.5
"""Factor on the learning rate at each epoch of `halved_at`."""


class Range(NamedTuple):
    """The smallest, middle and largest value of several rehearsals."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Range":
        """Return the range of values. Infinity stands for a run without the goal."""
        return cls(min(values), median(values), max(values))


@dataclass(frozen=True)
class PlanOption:
    """A way to train the job, and what is predicted for it."""

    setup: Setup
    bought: str
    """Purchase option: `spot`, `on demand` or the name of a buying policy. Empty: the fleet has no zones."""
    why: str
    """Reason for its rank."""
    candidate: Candidate | None = None
    """None: it was not tried."""
    seconds: Range | None = None
    """Predicted time to the goal, in seconds. None: unknown."""
    dollars: Range | None = None
    """Predicted cost. None: unknown."""
    halved_at: tuple[float, ...] = ()
    """Epochs at which the learning rate is halved."""
    is_complete: bool = False
    """Whether the prediction is of complete runs. Otherwise, it is a rough estimate from a short trial."""
    is_feasible: bool = False
    """Whether all of these runs reach the goal within the deadline and the budget."""
    curve: tuple[tuple[float, float, float], ...] = ()
    """Predicted progress: seconds, epochs and evaluation loss."""

    @property
    def name(self) -> str:
        """Return the candidate and the purchase option as text."""
        halved = f", halved at {', '.join(f'{each:.3g}' for each in self.halved_at)} epochs"
        whole = f"{self.candidate or self.setup}{halved if self.halved_at else ''}"
        return f"{whole}, {self.bought}" if self.bought else whole


def planned_job(job: Job, option: PlanOption) -> Job:
    """Return the job with the batch size, optimizer and learning rate schedule of an option."""
    assert option.candidate is not None, "only options that were tried have an optimizer"
    changed = option.candidate.job(job)
    return replace(changed, lr_schedule=MultiStep(option.halved_at, HALF)) if option.halved_at else changed


def ranked(
    options: Sequence[PlanOption],
    minimize: Minimize,
    deadline_hours: float | None,
    budget_dollars: float | None,
) -> list[PlanOption]:
    """Return the options with their feasibility, the best one first."""
    checked = [
        replace(each, is_feasible=is_feasible(each, deadline_hours, budget_dollars)) for each in options
    ]

    def rank(each: PlanOption) -> tuple[bool, bool, float, float]:
        seconds = each.seconds.middle if each.seconds else inf
        dollars = each.dollars.middle if each.dollars else inf
        first, second = (seconds, dollars) if minimize == "time" else (dollars, seconds)
        return not each.is_feasible, not each.is_complete, first, second

    return sorted(checked, key=rank)


def is_feasible(option: PlanOption, deadline_hours: float | None, budget_dollars: float | None) -> bool:
    """Return whether all rehearsals reach the goal within the deadline and the budget."""
    if option.seconds is None or option.dollars is None or not option.is_complete:
        return False
    if not isfinite(option.seconds.high):
        return False
    on_time = deadline_hours is None or option.seconds.high <= 3600 * deadline_hours
    return on_time and (budget_dollars is None or option.dollars.high <= budget_dollars)


def with_prices(option: PlanOption, factor: float) -> PlanOption:
    """Return the option with its cost multiplied by a factor."""
    if option.dollars is None:
        return option
    return replace(option, dollars=Range(*(factor * each for each in option.dollars)))
