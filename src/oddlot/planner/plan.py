"""`plan`: find the fastest or cheapest way to train a job on a fleet."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import median
from typing import NamedTuple, Unpack

from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import JobError
from oddlot.core.support.text import counted, duration, money
from oddlot.core.support.user_warnings import once
from oddlot.engines.payloads import most_bytes
from oddlot.history.goals import Term
from oddlot.machines.buying import Buying
from oddlot.machines.market import Fleet
from oddlot.model.flat_buffer import Layout
from oddlot.planner.candidates import (
    Candidate,
    Setup,
    first_candidates,
    saturated,
    seconds_per_sample,
)
from oddlot.planner.estimate import purchase_options
from oddlot.planner.plan_request import Request, check, goal_of, setups_of
from oddlot.planner.prediction import Minimize
from oddlot.planner.search import Leader, Loser, Search
from oddlot.planner.timeline import Timeline
from oddlot.planner.trial import Bench, Trial
from oddlot.run.config import RunConfig, RunSettings
from oddlot.run.signals import StopRequest
from oddlot.train.job import Job
from oddlot.train.lr_schedules import MultiStep
from oddlot.wire.codec import Codec
from oddlot.wire.plain import Plain

LATER = (1.25, 1.75)
"""Epochs, relative to those that the search needed, at which the learning rate is halved if the goal is not reached."""
RETRIES = 3
"""Number of times that the learning rate is halved because a rehearsal did not reach the goal."""
REHEARSED = 3.0
"""Multiple of the search's time or cost after which a rehearsal without the goal ends."""


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
    is_rehearsed: bool = False
    """Whether the prediction is of complete runs. Otherwise, it is a rough estimate from a short trial."""
    is_feasible: bool = False
    """Whether all of these runs reach the goal within the deadline and the budget."""

    @property
    def name(self) -> str:
        """Return the candidate and the purchase option as text."""
        halved = f", halved at {', '.join(f'{each:.3g}' for each in self.halved_at)} epochs"
        whole = f"{self.candidate or self.setup}{halved if self.halved_at else ''}"
        return f"{whole}, {self.bought}" if self.bought else whole


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
    curve: Sequence[tuple[float, float, float]] = ()
    """Predicted progress of the best option: seconds, epochs and loss."""

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

    def best_at(self, spot_prices: float) -> PlanOption:
        """Return the best option if spot prices are multiplied by a factor. It may be infeasible then.

        The prices of the hub and of on-demand machines that a buying policy adds are multiplied too.
        """
        self.best  # noqa: B018 - raises an error
        factors = [1.0 if each.bought in {"", "on demand"} else spot_prices for each in self.options]
        changed = [_with_prices(*pair) for pair in zip(self.options, factors, strict=True)]
        ranked = _ranked(changed, self.minimize, self.deadline_hours, self.budget_dollars)
        return ranked[0]

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
    on_progress: Callable[[str], None] = lambda _: None,
    **settings: Unpack[RunSettings],
) -> Plan:
    """Find the fastest or cheapest way to train a job on a fleet.

    The job is trained in this process, along simulated timelines of the fleet. Short trials of the candidates compete.
    The best one continues to the goal and is rehearsed with other seeds: on spot machines, on demand and, with a
    deadline, with a buying policy.

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
        on_progress: Called with a line of text before each step.
        settings: Further keywords of `oddlot.fit`. The goal `until` needs a metric or the loss; its other terms are
            limits.

    Returns:
        A `Plan`. Its `best` raises JobError if no option is feasible.

    Raises:
        UsageError: An argument is invalid, the goal has no metric, or a cost is limited without prices.
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
    config = RunConfig.of(settings)
    goal, limits = goal_of(job, config)
    setups = setups_of(job, fleet, strategies, batch_sizes, codecs)
    if deadline_hours is not None and fleet.has_spot and fleet.buying is None:
        fleet = replace(fleet, buying=Buying(deadline_hours))
    planner = _Planner(job, fleet, goal, config, minimize, share, limits, on_progress)
    with StopRequest().heard() as stop, once():
        planner.stop = stop
        try:
            planner.search(setups)
            planner.rehearse(rehearsals)
        except _Stopped:
            pass
        finally:
            planner.trials.close()
        found = planner.found(deadline_hours, budget_dollars)
    if stop.signal:
        raise PlanInterrupted(stop.signal, found)
    return found


def planned_job(job: Job, option: PlanOption) -> Job:
    """Return the job with the batch size, optimizer and learning rate schedule of an option."""
    assert option.candidate is not None, "only options that were tried have an optimizer"
    changed = option.candidate.job(job)
    return replace(changed, lr_schedule=MultiStep(option.halved_at, 0.5)) if option.halved_at else changed


class _Stopped(Exception):
    """Ctrl-C or SIGTERM stopped the search."""


class _Planner:
    """The search on the fleet as it is, and the rehearsals on all purchase options."""

    def __init__(
        self,
        job: Job,
        fleet: Fleet,
        goal: Term,
        config: RunConfig,
        minimize: Minimize,
        share: float,
        limits: tuple[float, float, float],
        on_progress: Callable[[str], None],
    ) -> None:
        self.job, self.fleet, self.goal, self.config = job, fleet, goal, config
        self.minimize, self.limits, self.on_progress = minimize, limits, on_progress
        self.options = purchase_options(fleet)
        self.stop = StopRequest()
        bought = next(iter(self.options))
        self.trials = Search(job, self.options[bought], goal, config, minimize, share, limits, self._look)
        self.bought = bought
        self.candidates: Sequence[Candidate] = ()
        self.untried: dict[Setup, str] = {}
        self.rehearsed: dict[str, list[Rehearsal]] = {}

    def _look(self, search: Search) -> None:
        """Report the state of the search. Raise an exception if it is to stop."""
        self._check_stop()
        leader = search.leader
        at = f"{leader.current} at {duration(leader.trial.seconds)}" if leader else "comparing candidates"
        self.on_progress(f"{at}; {counted(len(search.losers), 'candidate')} given up")

    def _check_stop(self) -> None:
        if self.stop.signal:
            raise _Stopped

    def search(self, setups: Sequence[Setup]) -> None:
        """Find the best candidate."""
        layout = Layout.from_module(self.job.model(), self.job.as_buffers)
        times = dict[Setup, float]()
        for setup in setups:
            size = most_bytes(setup.codec or self.config.codec or Plain(), layout)
            seconds = seconds_per_sample(setup, self.trials.fleet, layout.bytes, size)
            if seconds is not None:
                times[setup] = seconds
        self.untried = saturated(times)
        kept = [setup for setup in setups if setup not in self.untried]
        self.candidates = candidates = first_candidates(kept, self.job)
        tried = {each.setup for each in candidates}
        self.untried |= {
            setup: "fewer groups than the largest ones, which learned as well"
            for setup in kept
            if setup not in tried
        }
        self.trials.run(candidates)

    def _halved_at(self, leader: Leader) -> tuple[float, ...]:
        """Return the epochs at which the learning rate is halved: in the search, and later as a precaution.

        With other seeds, the noise of a learning rate may keep a run above the goal.
        """
        if leader.trial.reached is None or self.job.lr_schedule is not None:
            return leader.halved_at
        later = (round(factor * leader.trial.reached.epochs, 3) for factor in LATER)
        return (*leader.halved_at, *later)

    def rehearse(self, count: int) -> None:
        """Train the best candidate to the goal with further seeds, for every purchase option.

        If a run does not reach the goal, the candidate is not reliable, and half its learning rate is rehearsed.
        """
        for attempt in range(RETRIES + 1):
            leader, self.rehearsed = self.trials.leader, {}
            if leader is None or leader.trial.reached is None:
                return
            found = [run for each in self._rehearsals(leader, count) for run in each]
            if all(isfinite(run.seconds) for run in found):
                return
            self.trials.spent_seconds += sum(run.spent_seconds for run in found)
            self.trials.spent_dollars += sum(run.spent_dollars for run in found)
            if attempt == RETRIES:
                return
            self.trials.restart()

    def _rehearsals(self, leader: Leader, count: int) -> Iterator[list["Rehearsal"]]:
        """Yield the rehearsals of each purchase option. Stop after one in which a run does not reach the goal."""
        assert leader.trial.reached is not None, "only such candidates are rehearsed"
        epochs = leader.trial.reached.epochs
        halved_at = self._halved_at(leader)
        option = PlanOption(leader.candidate.setup, "", "", leader.candidate, halved_at=halved_at)
        job = planned_job(self.job, option)
        seeds = range(self.config.seed + 1, self.config.seed + 1 + count)
        benches = {seed: Bench(job, seed, self._check_stop) for seed in seeds}
        for bought, bare in self.options.items():
            fleet = replace(bare, buying=bare.buying and replace(bare.buying, epochs=epochs))
            found = self.rehearsed[bought] = list[Rehearsal]()
            for seed in seeds:
                self.on_progress(f"rehearsing {option.name} {bought} with seed {seed}".replace("  ", " "))
                config = RunConfig(**{**vars(self.config), "seed": seed})
                config = replace(config, codec=option.setup.codec or config.codec)
                run = _rehearsal(
                    benches[seed], option.setup.strategy, fleet, config, self.goal, epochs, self.limits
                )
                found.append(run)
            yield found
            if not all(isfinite(run.seconds) for run in found):
                return

    def found(self, deadline_hours: float | None, budget_dollars: float | None) -> Plan:
        """Return the ranked options."""
        leader, search = self.trials.leader, self.trials
        options = self._options_of(leader) if leader else []
        best = options[0] if options else None
        options += [self._option_of(loser, best) for loser in search.losers]
        options = _ranked(options, self.minimize, deadline_hours, budget_dollars)
        if leader is None:
            lost = {each.candidate for each in search.losers}
            why = "was stopped while candidates were compared"
            options += [
                PlanOption(each.setup, self.bought, why, each) for each in self.candidates if each not in lost
            ]
        options += [PlanOption(setup, self.bought, why) for setup, why in self.untried.items()]
        return Plan(
            self.goal,
            self.minimize,
            options,
            deadline_hours,
            budget_dollars,
            search.spent_seconds,
            leader.trial.reached.seconds if leader and leader.trial.reached else None,
            search.spent_share,
            (*leader.raced, *leader.curve) if leader else (),
        )

    def _options_of(self, leader: Leader) -> list[PlanOption]:
        """Return an option for each purchase option of the best candidate."""
        setup, candidate, halved = leader.candidate.setup, leader.candidate, self._halved_at(leader)
        found = list[PlanOption]()
        for bought, runs in self.rehearsed.items():
            if not runs:  # stopped before the first
                continue
            seconds = Range.of([run.seconds for run in runs])
            dollars = Range.of([run.dollars for run in runs])
            why, missed = counted(len(runs), "rehearsal"), sum(not isfinite(run.seconds) for run in runs)
            why = f"reached the goal in {len(runs) - missed} of {why}" if missed else why
            found.append(PlanOption(setup, bought, why, candidate, seconds, dollars, halved, True))
        if found:
            return found
        at, why = leader.trial.reached, self._why_not(leader)
        pair = (at.seconds, at.dollars) if at else (inf, inf)
        seconds, dollars = (Range.of([value]) for value in pair)
        why = "not rehearsed" if at else why
        return [PlanOption(setup, self.bought, why, candidate, seconds, dollars, halved, at is not None)]

    def _why_not(self, leader: Leader) -> str:
        """Return what a trial reached without the goal."""
        values = [found for each in leader.trial.history if (found := each.metrics.get(self.goal.figure))]
        best = (max if self.goal.compare.startswith(">") else min)(values, default=None)
        reached = "" if best is None else f"{self.goal.figure} {best:.3g} "
        when = f"in {duration(leader.trial.seconds)}"
        return f"was stopped {when}" if self.stop.signal else f"reached {reached}{when}"

    def _option_of(self, loser: Loser, best: PlanOption | None) -> PlanOption:
        """Return the option of a candidate that was given up.

        Its time and cost are estimated from the time at which the best candidate had the same loss.
        """
        found = PlanOption(loser.candidate.setup, self.bought, "diverged", loser.candidate)
        if not isfinite(loser.loss):
            return found
        why = f"given up at {duration(loser.seconds)} with loss {loser.loss:.3g}"
        leader = self.trials.leader
        seconds = leader and leader.seconds_at(loser.loss)
        if not seconds or best is None:
            return replace(found, why=why)
        slower = loser.seconds / seconds
        why = f"given up at {duration(loser.seconds)}; the best had its loss at {duration(seconds)}"
        times, costs = (
            (each and isfinite(each.high) and Range(*(slower * value for value in each))) or None
            for each in (best.seconds, best.dollars)
        )
        return replace(found, why=why, seconds=times, dollars=costs)


class Rehearsal(NamedTuple):
    """A complete run of a plan with another seed."""

    seconds: float
    """Time to the goal; infinity if it was not reached."""
    dollars: float
    spent_seconds: float
    """Time of the run."""
    spent_dollars: float


def _rehearsal(
    bench: Bench,
    strategy: Strategy,
    fleet: Fleet,
    config: RunConfig,
    goal: Term,
    epochs: float,
    limits: tuple[float, float, float],
) -> Rehearsal:
    """Run a plan to the goal, to the limits (seconds, dollars and epochs), or for `REHEARSED` times these epochs."""
    timeline = Timeline.of(bench.job, strategy, fleet, config)
    try:
        trial = Trial(bench, timeline, bench.job.optimizer, goal, config.codec)
        seconds, dollars, most_epochs = limits
        try:
            trial.advance(seconds, dollars, min(most_epochs, REHEARSED * epochs))
        except JobError as error:
            if error.code != "stalled":  # no machine is left on the spot market
                raise
        at = trial.reached
        trial.close()
    finally:
        timeline.close()
    found = (at.seconds, at.dollars) if at else (inf, inf)
    return Rehearsal(*found, trial.seconds, trial.dollars)


def _ranked(
    options: Sequence[PlanOption],
    minimize: Minimize,
    deadline_hours: float | None,
    budget_dollars: float | None,
) -> list[PlanOption]:
    """Return the options with their feasibility, the best one first."""
    checked = [
        replace(each, is_feasible=_is_feasible(each, deadline_hours, budget_dollars)) for each in options
    ]

    def rank(each: PlanOption) -> tuple[bool, bool, float, float]:
        seconds = each.seconds.middle if each.seconds else inf
        dollars = each.dollars.middle if each.dollars else inf
        first, second = (seconds, dollars) if minimize == "time" else (dollars, seconds)
        return not each.is_feasible, not each.is_rehearsed, first, second

    return sorted(checked, key=rank)


def _is_feasible(option: PlanOption, deadline_hours: float | None, budget_dollars: float | None) -> bool:
    """Return whether all rehearsals reach the goal within the deadline and the budget."""
    if option.seconds is None or option.dollars is None or not option.is_rehearsed:
        return False
    if not isfinite(option.seconds.high):
        return False
    on_time = deadline_hours is None or option.seconds.high <= 3600 * deadline_hours
    return on_time and (budget_dollars is None or option.dollars.high <= budget_dollars)


def _with_prices(option: PlanOption, factor: float) -> PlanOption:
    if option.dollars is None:
        return option
    return replace(option, dollars=Range(*(factor * each for each in option.dollars)))
