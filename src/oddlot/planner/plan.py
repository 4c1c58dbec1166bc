"""`plan`: find the fastest or cheapest way to train a job on a fleet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Unpack

from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import InvalidValue, JobError
from oddlot.core.support.text import counted, duration, money
from oddlot.core.support.user_warnings import once
from oddlot.history.goals import Term
from oddlot.machines.buying import Buying
from oddlot.machines.market import Fleet
from oddlot.planner.fleet_speed import MeasuredSpeed
from oddlot.planner.plan_options import PlanOption, planned_job, ranked, with_prices
from oddlot.planner.plan_request import Request, check, goal_of, setups_of
from oddlot.planner.plan_search import PlanSearch, Stopped
from oddlot.planner.prediction import Minimize
from oddlot.planner.profile import Profile, this_machine
from oddlot.run.config import RunConfig, RunSettings
from oddlot.run.signals import StopRequest
from oddlot.train.job import Job
from oddlot.wire.codec import Codec


@dataclass(frozen=True, repr=False)
class Plan:
    """Ways to train a job on a fleet, the best one first."""

    goal: Term
    minimize: Minimize
    options: Sequence[PlanOption]
    """Ranked options: rehearsed ones, then those that were given up, then those that were not tried."""
    deadline_hours: float | None = None
    budget_dollars: float | None = None
    spent_seconds: float = 0.0
    """Virtual seconds of trials that were given up."""
    chosen_seconds: float | None = None
    """Virtual seconds of the best candidate to the goal, in the run that the search made. None: not reached."""
    search_share: float = 0.0
    """Their part of the time of a run that includes the search."""
    buying: Buying | None = None
    """Buying policy of the fleet, with the deadline of the plan and the epochs of the best candidate to the goal."""
    compute_factor: float = 1.0
    """Computation time of the best option's tasks in the profile, relative to the fleet. 1: without a profile."""
    merge_seconds: float = 0.0
    """Merge time in the profile. 0: without a profile."""

    def __repr__(self) -> str:
        best = self.options[0].name if self.options and self.options[0].is_feasible else "none is feasible"
        return f"<Plan for {self.goal}: {counted(len(self.options), 'option')}, best: {best}>"

    @property
    def best(self) -> PlanOption:
        """Return the best feasible option. Raise JobError with the nearest one if there is none."""
        if self.options and self.options[0].is_feasible:
            return self.options[0]
        nearest = self.options[0] if self.options else None
        message = f"no plan reaches {self.goal}{self._within}"
        if nearest is None:
            message += ": no candidate was compared"
        elif nearest.seconds is None or not isfinite(nearest.seconds.high):
            message += (
                f". The nearest {nearest.why} ({nearest.name}). Lower the goal, raise the limits in `until`, "
            )
            message += "or change the model or its optimizer"
        else:
            took = duration(nearest.seconds.high)
            if nearest.dollars is not None and nearest.dollars.high:
                took += f" and {money(nearest.dollars.high)}"
            message += f". The nearest takes up to {took} ({nearest.name}). {self._help}"
        name = None if nearest is None else nearest.name
        seconds = None if nearest is None or nearest.seconds is None else nearest.seconds.high
        raise JobError(message, "no_plan", nearest=name, seconds=seconds)

    @property
    def strategy(self) -> Strategy:
        """Return the strategy of the best option."""
        return self.best.setup.strategy

    @property
    def codec(self) -> Codec | None:
        """Return the codec of the best option. None: the run's default."""
        return self.best.setup.codec

    def job(self, job: Job) -> Job:
        """Return the job with the batch size, optimizer and learning rate schedule of the best option."""
        return planned_job(job, self.best)

    @property
    def curve(self) -> Sequence[tuple[float, float, float]]:
        """Return the predicted progress of the first option: seconds, epochs and loss."""
        return self.options[0].curve if self.options else ()

    def best_at(self, spot_prices: float) -> PlanOption:
        """Return the best option if spot prices are multiplied by a factor. It may be infeasible then.

        The prices of the hub and of on-demand machines that a buying policy adds are multiplied too.
        """
        if not 0 < spot_prices < inf:
            raise InvalidValue("spot_prices", spot_prices, "above 0")
        self.best  # noqa: B018 - raises an error
        factors = [1.0 if each.bought in {"", "on demand"} else spot_prices for each in self.options]
        changed = [with_prices(*pair) for pair in zip(self.options, factors, strict=True)]
        return ranked(changed, self.minimize, self.deadline_hours, self.budget_dollars)[0]

    @property
    def _within(self) -> str:
        limits = [] if self.deadline_hours is None else [f"within {self.deadline_hours:g} h"]
        limits += [] if self.budget_dollars is None else [f"for at most {money(self.budget_dollars)}"]
        return f" {' and '.join(limits)}" if limits else ""

    @property
    def _help(self) -> str:
        given = {"deadline": self.deadline_hours, "budget": self.budget_dollars}
        raised = [name for name, value in given.items() if value is not None]
        return f"Raise the {' or the '.join(raised)}, or use faster machines" if raised else "Lower the goal"


class PlanInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM stopped the search. `found` has what was found until then."""

    def __init__(self, signal: int, found: Plan) -> None:
        super().__init__("stopped; the attribute `found` has the plan so far")
        self.signal, self.found = signal, found


def plan(
    job: Job,
    fleet: Fleet,
    *,
    minimize: Minimize = "time",
    deadline_hours: float | None = None,
    budget_dollars: float | None = None,
    strategies: Sequence[Strategy] | None = None,
    batch_sizes: Sequence[int] | None = None,
    codecs: Sequence[Codec | str | None] = (None,),
    share: float = 0.15,
    rehearsals: int = 3,
    profile: Profile | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
    **settings: Unpack[RunSettings],
) -> Plan:
    """Find the fastest or cheapest way to train a job on a fleet.

    The job is trained in this process, along simulated timelines of the fleet. Short trials of the candidates compete.
    The best one continues to the goal and is rehearsed with other seeds: on spot machines, on demand and, with a
    deadline, with a buying policy. If it misses a limit, the next candidates are rehearsed too, until one keeps it.

    Args:
        job: The job. The learning rate and momentum of its optimizer should be good for one worker.
        fleet: The fleet, for example from `oddlot.read_fleet`.
        minimize: `time` or `dollars`.
        deadline_hours: Largest time to the goal, in hours.
        budget_dollars: Largest cost.
        strategies: Strategies to choose from. None: `Groups(Synchronous())` with 1, 2, 4, ... groups.
        batch_sizes: Batch sizes to choose from. None: the job's.
        codecs: Codecs to choose from. None: the run's default.
        share: Share of the run for trials that are given up, in virtual time. A short run spends more, because the
            first comparison takes at least 10 merges of each candidate.
        rehearsals: Number of further seeds for which the best candidate is trained to the goal.
        profile: Profile of the job on this machine. The fastest machines of the fleet are then as fast as measured for
            the samples of their tasks, and the others keep their relative speed. A hub without a merge time has the
            measured one.
        on_progress: Called with a line of text before each step.
        settings: Further keywords of `oddlot.fit`. The goal `until` needs a metric or the loss; its other terms are
            limits.

    Returns:
        A `Plan`. Its `best` raises JobError if no option is feasible.

    Raises:
        UsageError: An argument is invalid, the goal has no metric, a cost is limited without prices, or the profile is
            of another machine or another version of the job.
        JobError: The job fails, or diverges with every candidate.
        PlanInterrupted: after Ctrl-C or SIGTERM, with what was found.
    """
    request = Request(
        minimize=minimize,
        deadline_hours=deadline_hours,
        budget_dollars=budget_dollars,
        share=share,
        rehearsals=rehearsals,
    )
    check(job, fleet, request)
    if profile is not None:
        profile.check(job, this_machine())
    speed = MeasuredSpeed.of(profile, fleet) if profile else None
    config = RunConfig.of(settings)
    goal, limits = goal_of(job, config)
    setups = setups_of(job, fleet, strategies, batch_sizes, codecs)
    if deadline_hours is not None and fleet.has_spot:
        buying = fleet.buying or Buying(deadline_hours)
        fleet = replace(fleet, buying=replace(buying, deadline_hours=deadline_hours))
    search = PlanSearch(job, fleet, goal, config, request, limits, speed, on_progress)
    with StopRequest().heard() as stop, once():
        search.stop = stop
        try:
            search.run(setups)
            search.rehearse()
        except Stopped:
            pass
        finally:
            search.trials.close()
    options = ranked(search.compared(), minimize, deadline_hours, budget_dollars)
    leader = search.leaders.get(options[0].candidate) if options else None
    reached = leader and leader.trial.reached
    found = Plan(
        goal,
        minimize,
        [*options, *search.not_compared()],
        deadline_hours,
        budget_dollars,
        search.trials.spent_seconds,
        reached.seconds if reached else None,
        search.trials.spent_share,
        fleet.buying and replace(fleet.buying, epochs=reached.epochs if reached else fleet.buying.epochs),
        speed.factor(options[0].setup, fleet) if speed and options else 1.0,
        profile.merge_seconds if profile else 0.0,
    )
    if stop.signal:
        raise PlanInterrupted(stop.signal, found)
    return found
