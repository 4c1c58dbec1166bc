"""The search of a plan on a fleet, and the rehearsals of its best candidate for each purchase option."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import isfinite

from oddlot.core.support.errors import JobError
from oddlot.core.support.text import counted, duration
from oddlot.engines.payloads import most_bytes
from oddlot.history.goals import Term
from oddlot.machines.market import Fleet
from oddlot.planner.candidates import Candidate, Setup, first_candidates, saturated, seconds_per_sample
from oddlot.planner.estimate import purchase_options
from oddlot.planner.fleet_speed import MeasuredSpeed
from oddlot.planner.found_options import given_up_option, rehearsed_options, searched_option
from oddlot.planner.next_candidates import next_candidates
from oddlot.planner.plan_options import PlanOption, is_feasible, planned_job
from oddlot.planner.plan_request import Request
from oddlot.planner.rehearsals import Rehearsal, rehearse
from oddlot.planner.search import Leader, Loser, Search
from oddlot.planner.trial import Bench
from oddlot.run.config import RunConfig
from oddlot.run.signals import StopRequest
from oddlot.train.job import Job, layout_of, made
from oddlot.wire.plain import Plain

LATER = (1.25, 1.75)
"""Epochs, relative to those that the search needed, at which the learning rate is halved if the goal is not reached."""
HALVINGS = 3
"""Number of times that the learning rate is halved because a rehearsal did not reach the goal."""


class Stopped(Exception):
    """Ctrl-C or SIGTERM stopped the search."""


class PlanSearch:
    """The search on the fleet as it is, and the rehearsals on all purchase options."""

    def __init__(
        self,
        job: Job,
        fleet: Fleet,
        goal: Term,
        config: RunConfig,
        request: Request,
        limits: tuple[float, float, float],
        speed: MeasuredSpeed | None,
        on_progress: Callable[[str], None],
    ) -> None:
        self.job, self.goal, self.config = job, goal, config
        self.request, self.limits, self.on_progress = request, limits, on_progress
        self.speed, self.options = speed, purchase_options(fleet)
        self.stop = StopRequest()
        self.bought = next(iter(self.options))
        self.trials = self._search_on(self.options[self.bought], (0.0, 0.0))
        self.candidates: Sequence[Candidate] = ()
        self.untried: dict[Setup, str] = {}
        self.times: dict[Setup, float] = {}
        """Predicted seconds per sample, for setups that have a prediction."""
        self.rehearsed: dict[str, list[Rehearsal]] = {}
        self.done: set[Candidate] = set()
        """Rehearsed candidates."""
        self.missed: list[tuple[Leader, list[PlanOption]]] = []
        """Earlier best candidates that missed a limit, and their options."""
        self.ended: list[PlanOption] = []
        """Options of a search that ended because the fleet had no machines left."""

    def _search_on(self, fleet: Fleet, spent: tuple[float, float]) -> Search:
        minimize, share = self.request.minimize, self.request.share
        arguments = self.job, fleet, self.goal, self.config, minimize, share, self.limits, self._look, spent
        return Search(*arguments, self.speed)

    def _look(self, search: Search) -> None:
        """Report the state of the search. Raise an exception if it is to stop."""
        self._check_stop()
        leader = search.leader
        at = f"{leader.current} at {duration(leader.trial.seconds)}" if leader else "comparing candidates"
        self.on_progress(f"{at}; {counted(len(search.losers), 'candidate')} given up")

    def _check_stop(self) -> None:
        if self.stop.signal:
            raise Stopped

    def run(self, setups: Sequence[Setup]) -> None:
        """Find the best candidate."""
        layout = layout_of(self.job, made(self.job))
        for setup in setups:
            size = most_bytes(setup.codec or self.config.codec or Plain(), layout)
            seconds = seconds_per_sample(setup, self.trials.fleet_of(setup), layout.bytes, size)
            if seconds is not None:
                self.times[setup] = seconds
        self.untried = saturated(self.times)
        kept = [setup for setup in setups if setup not in self.untried]
        self.candidates = candidates = first_candidates(kept, self.job)
        tried = {each.setup for each in candidates}
        self.untried |= {
            setup: "fewer groups than the largest ones, which learned as well"
            for setup in kept
            if setup not in tried
        }
        self.trials.run(candidates)
        others = [bought for bought, fleet in self.options.items() if fleet.buying is None][1:]
        for bought in others:
            if self.trials.leader is not None and not self.trials.leader.trial.ended:
                return
            self._buy_otherwise(bought)
            self.trials.run(candidates)

    def _buy_otherwise(self, bought: str) -> None:
        """Start a search with another purchase option, after the machines of the first one were gone."""
        leader = self.trials.leader
        self.ended += self._options_of(leader) if leader else []
        shown = {option.candidate for option in self.ended}
        self.trials.give_up_leader()
        lost = [each for each in self.trials.losers if each.ended and each.candidate not in shown]
        self.ended += [self._given_up(each, None, None) for each in lost]
        self.trials.close()
        self.bought = bought
        spent = self.trials.spent_seconds, self.trials.spent_dollars
        self.trials = self._search_on(self.options[bought], spent)

    # --- rehearsals ----------------------------------------------------------------------------

    def _halved_at(self, leader: Leader) -> tuple[float, ...]:
        """Return the epochs at which the learning rate is halved: in the search, and later as a precaution.

        With other seeds, the noise of a learning rate may keep a run above the goal.
        """
        if leader.trial.reached is None or self.job.lr_schedule is not None:
            return leader.halved_at
        later = (round(factor * leader.trial.reached.epochs, 3) for factor in LATER)
        return (*leader.halved_at, *later)

    def rehearse(self) -> None:
        """Train the best candidate to the goal with further seeds, for every purchase option.

        If it misses a limit, do the same with the next candidates, until one keeps the limits.
        """
        first = self.trials.leader
        self._rehearse_best()
        if first is None or not (first.trial.reached or first.is_limited) or self._holds():
            return
        for candidate in self._next_candidates():
            if candidate in self.done:  # half the learning rate of an earlier one
                continue
            self._try_next(candidate)
            self._rehearse_best()
            if self._holds():
                return

    def _rehearse_best(self) -> None:
        """Train the best candidate with further seeds. If a run misses the goal, do the same with half its rate."""
        for attempt in range(HALVINGS + 1):
            leader, self.rehearsed = self.trials.leader, {}
            if leader is None or leader.trial.reached is None:
                return
            self.done.add(leader.candidate)
            found = [run for each in self._rehearsals(leader) for run in each]
            if all(isfinite(run.seconds) or run.ended for run in found):
                return
            self.trials.spent_seconds += sum(run.spent_seconds for run in found)
            self.trials.spent_dollars += sum(run.spent_dollars for run in found)
            if attempt == HALVINGS:
                return
            self.rehearsed = {}
            self.trials.replace_leader(leader.candidate.slower())

    def _holds(self) -> bool:
        """Return whether the best candidate keeps the limits with a purchase option."""
        options = self._options_of(self.trials.leader) if self.trials.leader else []
        deadline, budget = self.request.deadline_hours, self.request.budget_dollars
        return any(is_feasible(each, deadline, budget) for each in options)

    def _next_candidates(self) -> list[Candidate]:
        leader = self.trials.leader
        if leader is None:
            return []
        losers = [each for each in self.trials.losers if each.candidate not in self.done]
        slow = saturated(self.times)
        untried = [setup for setup in self.untried if setup not in slow]
        return next_candidates(
            leader, self._options_of(leader), losers, untried, self.times, self.job, self.request
        )

    def _try_next(self, candidate: Candidate) -> None:
        """Follow a candidate to the goal instead of the best one, which missed a limit."""
        leader = self.trials.leader
        if leader is not None:
            self.missed.append((leader, self._options_of(leader)))
        self.rehearsed = {}
        self.untried.pop(candidate.setup, None)
        try:
            self.trials.replace_leader(candidate)
        except JobError as error:
            if error.code != "diverges":  # it is then among the candidates that were given up
                raise

    def _rehearsals(self, leader: Leader) -> Iterator[list[Rehearsal]]:
        """Yield the rehearsals of each purchase option. Stop after one in which a run does not reach the goal."""
        assert leader.trial.reached is not None, "only such candidates are rehearsed"
        epochs = leader.trial.reached.epochs
        halved_at = self._halved_at(leader)
        option = PlanOption(leader.candidate.setup, "", "", leader.candidate, halved_at=halved_at)
        job = planned_job(self.job, option)
        seeds = range(self.config.seed + 1, self.config.seed + 1 + self.request.rehearsals)
        benches = {seed: Bench(job, seed, self._check_stop) for seed in seeds}
        for bought, bare in self.options.items():
            fleet = replace(bare, buying=bare.buying and replace(bare.buying, epochs=epochs))
            fleet = self.speed.applied(fleet, option.setup) if self.speed else fleet
            found = self.rehearsed[bought] = list[Rehearsal]()
            for seed in seeds:
                self.on_progress(f"rehearsing {option.name} {bought} with seed {seed}".replace("  ", " "))
                config = replace(self.config, seed=seed, codec=option.setup.codec or self.config.codec)
                run = rehearse(
                    benches[seed], option.setup.strategy, fleet, config, self.goal, epochs, self.limits
                )
                found.append(run)
            yield found
            if not all(isfinite(run.seconds) or run.ended for run in found):
                return

    @property
    def leaders(self) -> dict[Candidate | None, Leader]:
        """Return the best candidate of the search and those that missed a limit, with their trials."""
        found = [leader for leader, _ in self.missed]
        return {each.candidate: each for each in [*found, *filter(None, [self.trials.leader])]}

    # --- options -------------------------------------------------------------------------------

    def compared(self) -> list[PlanOption]:
        """Return the options of the best candidates, then those of candidates that were given up."""
        leader = self.trials.leader
        options = self._options_of(leader) if leader else []
        first, known = self.missed[0] if self.missed else (leader, options)
        best = known[0] if known else None
        options = [*options, *(option for _, missed in self.missed for option in missed)]
        rehearsed = {(option.candidate, option.bought) for option in options}
        options += [each for each in self.ended if (each.candidate, each.bought) not in rehearsed]
        shown = {option.candidate for option in options}
        losers = [each for each in self.trials.losers if each.candidate not in shown]
        return options + [self._given_up(loser, first, best) for loser in losers]

    def not_compared(self) -> list[PlanOption]:
        """Return the candidates of a search that was stopped early, and the setups that were not tried."""
        options = list[PlanOption]()
        if self.stop.signal and self.trials.leader is None:
            lost = {each.candidate for each in self.trials.losers} | self.done
            why = "was stopped while candidates were compared"
            left = [each for each in self.candidates if each not in lost]
            options += [PlanOption(each.setup, self.bought, why, each) for each in left]
        return options + [PlanOption(setup, self.bought, why) for setup, why in self.untried.items()]

    def _options_of(self, leader: Leader) -> list[PlanOption]:
        """Return an option for each purchase option of the best candidate."""
        setup, halved = leader.candidate.setup, self._halved_at(leader)
        bare = PlanOption(setup, self.bought, "", leader.candidate, halved_at=halved)
        found = rehearsed_options(bare, self.rehearsed)
        return found or [searched_option(bare, leader, self.goal, is_stopped=bool(self.stop.signal))]

    def _given_up(self, loser: Loser, leader: Leader | None, best: PlanOption | None) -> PlanOption:
        bare = PlanOption(loser.candidate.setup, self.bought, "", loser.candidate)
        return given_up_option(bare, loser, leader, best)
