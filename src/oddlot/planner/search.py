"""The search of a plan: short trials of candidates compete, and the best one continues to the goal.

A search spends a share of the run on trials that are given up. It starts with the largest numbers of groups, because
they make the fastest steps, and the trials show whether their staleness slows learning down. When learning stalls, a
trial with half the learning rate competes with the leader.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from oddlot.core.support.errors import JobError
from oddlot.history.goals import Term
from oddlot.machines.market import Fleet
from oddlot.planner.candidates import Candidate, Setup, scaled
from oddlot.planner.fleet_speed import MeasuredSpeed
from oddlot.planner.prediction import Minimize
from oddlot.planner.timeline import Merge, Timeline
from oddlot.planner.trial import Bench, Trial
from oddlot.run.config import RunConfig
from oddlot.train.job import Job

FIRST_MERGES = 10
"""Merges of the slowest candidate in the first comparison."""
TIE = 0.2
"""Difference of two losses, relative to the progress so far, that does not decide between candidates."""
STEP = 1.25
"""Growth of the time between two looks at the leader."""
STALLED = 0.25
"""Speed of learning, relative to its maximum, below which half the learning rate is tried."""
CHALLENGE = 0.1
"""Length of that trial, as a share of the run so far."""
BETTER = 0.02
"""Relative difference of the losses that decides for half the learning rate."""
LEAST_MERGES = 5
"""Smallest number of merges of a trial."""
NO_PROGRESS = 0.01
"""Share of its progress that a run makes in its second half if it has stopped learning."""
LEAST_LOOKS = 12
"""Looks at the leader before a search may end without the goal."""
RESTARTS = 4
"""Number of times that a search starts again with a quarter of the learning rates after all candidates diverged."""


@dataclass(frozen=True)
class Loser:
    """A candidate that was given up, and its state then."""

    candidate: Candidate
    seconds: float
    """Virtual time of its last merge."""
    loss: float
    """Infinity if it diverged or never started."""
    ended: str = ""
    """Text that the fleet had no machines left. Empty otherwise."""


@dataclass
class Leader:
    """The best candidate of a search so far."""

    candidate: Candidate
    """The candidate, with its first learning rate."""
    trial: Trial
    halved_at: tuple[float, ...] = ()
    """Epochs at which the learning rate is halved."""
    curve: tuple[tuple[float, float, float], ...] = ()
    """Seconds, epochs and loss at each look."""
    raced: tuple[tuple[float, float, float], ...] = ()
    """The same, at the start and while it competed with other candidates."""
    is_limited: bool = False
    """Whether a limit ended its trial."""

    @property
    def current(self) -> Candidate:
        """Return the candidate with its present learning rate."""
        rate = 0.5 ** len(self.halved_at)
        return replace(self.candidate, optimizer=scaled(self.candidate.optimizer, rate))

    def seconds_at(self, loss: float) -> float | None:
        """Return the time when the loss was this small for the first time. None: unknown.

        Between two looks, the loss is interpolated.
        """
        looks = [(seconds, value) for seconds, _, value in (*self.raced, *self.curve)]
        looks += [
            (each.seconds, each.metrics["loss"]) for each in self.trial.history if "loss" in each.metrics
        ]
        before = (0.0, inf)
        for seconds, value in sorted(looks):
            if value <= loss:
                share = (before[1] - loss) / (before[1] - value) if before[1] < inf else 1.0
                return before[0] + share * (seconds - before[0])
            before = seconds, value
        return None


class Search:
    """Trials of one job on one fleet. Close it after use.

    Args:
        job: The job.
        fleet: The fleet.
        goal: A metric compared with a number.
        config: Run settings.
        minimize: Whether trials are compared at the same time or at the same cost.
        share: Share of the run above which no trial with half the learning rate starts.
        limits: Seconds, dollars and epochs that end a trial.
        on_look: Called before each merge. It may raise to end the search; what was found stays in the attributes.
        spent: Seconds and dollars of earlier trials.
        speed: Measured speed of the fleet. None: as in the fleet.
    """

    def __init__(
        self,
        job: Job,
        fleet: Fleet,
        goal: Term,
        config: RunConfig,
        minimize: Minimize = "time",
        share: float = 0.15,
        limits: tuple[float, float, float] = (inf, inf, inf),
        on_look: Callable[["Search"], None] = lambda _: None,
        spent: tuple[float, float] = (0.0, 0.0),
        speed: MeasuredSpeed | None = None,
    ) -> None:
        self.job, self.fleet, self.goal, self.config = job, fleet, goal, config
        self.minimize, self.share, self.limits, self.on_look = minimize, share, limits, on_look
        self.speed = speed
        self.leader: Leader | None = None
        self.losers: list[Loser] = []
        self.spent_seconds, self.spent_dollars = spent
        """Virtual seconds of trials that were given up, without the start of the machines, and their cost."""
        self._timelines: dict[Setup, Timeline] = {}
        self._benches: dict[int, Bench] = {}

    def close(self) -> None:
        """End the simulated runs."""
        for timeline in self._timelines.values():
            timeline.close()

    def run(self, candidates: Sequence[Candidate]) -> None:
        """Find the best candidate, with its trial at the goal or at the end of its progress.

        Raise JobError if all candidates diverge. If the fleet has no machine for any of them, there is no leader.
        """
        for _ in range(RESTARTS + 1):
            candidates = self._started(candidates)
            if not candidates:
                return
            self.leader = leader = self._race(candidates)
            if leader is not None:
                self._follow(leader)
                if not leader.trial.diverged:
                    return
                self._give_up(leader.candidate, leader.trial, inf)
                candidates = [leader.candidate]
            candidates = [each.slower().slower() for each in candidates]
        tried = [str(each.candidate) for each in self.losers]
        message = f"the job diverges with every candidate, the last one with {candidates[0]}: "
        raise JobError(message + "lower the learning rate of its optimizer", "diverges", candidates=tried)

    def replace_leader(self, candidate: Candidate) -> None:
        """Give up the best candidate, and follow another one from the initial weights. Raise the error of `run`."""
        self.give_up_leader()
        self.losers = [each for each in self.losers if each.candidate != candidate]
        self.run([candidate])

    def give_up_leader(self) -> None:
        """Count the trial of the best candidate with those that were given up."""
        if self.leader is not None:
            self._give_up(self.leader.candidate, self.leader.trial, self.loss(self.leader.trial))
        self.leader = None

    @property
    def spent_share(self) -> float:
        """Return the part of the time that was spent on trials that were given up."""
        seconds = self.leader.trial.seconds if self.leader else 0.0
        return self.spent_seconds / max(self.spent_seconds + seconds, 1e-9)

    # --- trials --------------------------------------------------------------------------------

    def fleet_of(self, setup: Setup) -> Fleet:
        """Return the fleet with its speed for the tasks of a setup."""
        return self.speed.applied(self.fleet, setup) if self.speed else self.fleet

    def timeline(self, setup: Setup) -> Timeline:
        """Return the timeline of a setup."""
        if setup not in self._timelines:
            job = replace(self.job, batch_size=setup.batch_size)
            config = replace(self.config, codec=setup.codec or self.config.codec)
            self._timelines[setup] = Timeline.of(job, setup.strategy, self.fleet_of(setup), config)
        return self._timelines[setup]

    def trial(self, candidate: Candidate, after: Trial | None = None) -> Trial:
        """Return a trial from the initial weights, or from those of another trial."""
        setup = candidate.setup
        if setup.batch_size not in self._benches:
            job = replace(self.job, batch_size=setup.batch_size)
            self._benches[setup.batch_size] = Bench(job, self.config.seed, lambda: self.on_look(self))
        bench, codec = self._benches[setup.batch_size], setup.codec or self.config.codec
        return Trial(bench, self.timeline(setup), candidate.optimizer, self.goal, codec, after)

    def loss(self, trial: Trial) -> float:
        """Return the evaluation loss or, without evaluation data, the training loss; infinity after divergence."""
        if trial.diverged or self.job.eval_data is None:
            return trial.score()
        return trial.evaluate().get("loss", inf)

    def _cost(self, at: "Trial | Merge") -> float:
        return at.seconds if self.minimize == "time" else at.dollars

    def _advance(self, trial: Trial, cost: float) -> None:
        self.on_look(self)
        seconds, dollars, epochs = self.limits
        if self.minimize == "time":
            trial.advance(min(cost, seconds), dollars, epochs)
        else:
            trial.advance(seconds, min(cost, dollars), epochs)

    def _spend(self, trial: Trial, seconds: float, dollars: float, until: float) -> None:
        """Count a trial that is given up, from this time and cost on.

        Unless it is over, it was given the time or the cost until `until`, in which its next merge is not complete.
        """
        given = {"time": trial.seconds, "dollars": trial.dollars}
        if not trial.is_over:
            given[self.minimize] = max(given[self.minimize], until)
        self.spent_seconds += max(0.0, given["time"] - seconds)
        self.spent_dollars += max(0.0, given["dollars"] - dollars)

    def _give_up(self, candidate: Candidate, trial: Trial, loss: float, until: float = 0.0) -> None:
        self._spend(trial, trial.timeline.start_seconds, 0.0, until)
        self.losers.append(Loser(candidate, trial.seconds, loss, trial.ended))
        trial.close()

    # --- the competition -----------------------------------------------------------------------

    def _started(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that complete a merge, and give up the others."""
        kept = [each for each in candidates if self.timeline(each.setup).has(1)]
        lost = [each for each in candidates if each not in kept]
        self.losers += [Loser(each, 0.0, inf, self.timeline(each.setup).ended) for each in lost]
        return kept

    def _race(self, candidates: Sequence[Candidate]) -> Leader | None:
        """Let trials run to the same time or cost, keep the better half, and double the length.

        The first trial that reaches the goal wins. Return None if all diverge.
        """
        trials = {each: self.trial(each) for each in candidates}
        first = {each: self.timeline(each.setup).merge(1) for each in candidates}
        start = min(map(self._cost, first.values()))
        length = (
            max(self._cost(self.timeline(each.setup).latest(FIRST_MERGES)) for each in candidates) - start
        )
        initial = self.loss(next(iter(trials.values())))
        looks = {each: list[tuple[float, float, float]]() for each in candidates}
        while trials:
            for trial in trials.values():
                self._advance(trial, start + length)
            losses = {each: self.loss(trial) for each, trial in trials.items()}
            if self.job.eval_data is None:
                initial = max(trial.losses[0][1] for trial in trials.values())
            for each, trial in trials.items():
                looks[each].append((trial.seconds, trial.epochs, losses[each]))
            reached = [each for each, trial in trials.items() if trial.reached]
            first_there = sorted(reached, key=lambda each: self._cost(trials[each]))[:1]
            going = {each: loss for each, loss in losses.items() if not trials[each].ended}
            kept = first_there or better_half(going or losses, initial)
            for each in [each for each in losses if each not in kept]:
                self._give_up(each, trials.pop(each), losses[each], start + length)
            if len(trials) == 1:
                candidate, trial = trials.popitem()
                return Leader(candidate, trial, raced=((0.0, 0.0, initial), *looks[candidate]))
            length *= 2
        return None

    def _follow(self, leader: Leader) -> None:
        """Continue the leader to the goal. When it stalls, let half the learning rate compete with it."""
        cost, last, fastest = self._cost(leader.trial), self.loss(leader.trial), 0.0
        while not self._is_finished(leader):
            before, version, cost = cost, leader.trial.version, cost * STEP
            self._advance(leader.trial, cost)
            if leader.trial.version == version and (
                leader.trial.ended or self._is_limited(leader.trial, cost)
            ):
                leader.is_limited = not leader.trial.ended
                return
            loss = self.loss(leader.trial)
            leader.curve += ((leader.trial.seconds, leader.trial.epochs, loss),)
            speed, last = (last - loss) / (cost - before), loss
            fastest = max(fastest, speed)
            if speed < STALLED * fastest and not self._is_finished(leader):
                length = self._affordable(leader.trial, cost) if self.job.lr_schedule is None else 0.0
                if length and self._challenge(leader, cost + length):
                    fastest = 0.0
                cost, last = cost + length, self.loss(leader.trial)

    def _is_finished(self, leader: Leader) -> bool:
        """Return whether the goal is reached, or the trial has diverged or stopped learning."""
        return leader.trial.is_over or stopped_learning(leader.curve)

    def _is_limited(self, trial: Trial, cost: float) -> bool:
        """Return whether a limit, and not `cost`, ended the last step of a trial."""
        return self._cost(trial.timeline.merge(trial.version + 1)) <= cost

    def _affordable(self, trial: Trial, cost: float) -> float:
        """Return the length of a challenge that `share` allows; 0 if it would be too short."""
        spent = self.spent_seconds if self.minimize == "time" else self.spent_dollars
        length = min(CHALLENGE * cost, self.share / (1 - self.share) * cost - spent)
        return length if length * trial.version >= LEAST_MERGES * cost else 0.0

    def _challenge(self, leader: Leader, cost: float) -> bool:
        """Let half the learning rate compete until `cost`. Return whether it wins."""
        old = leader.trial
        seconds, dollars, epochs = old.seconds, old.dollars, old.epochs
        new = self.trial(leader.current.slower(), after=old)
        for trial in (old, new):
            self._advance(trial, cost)
        wins = bool(new.reached) or self.loss(new) < (1 - BETTER) * self.loss(old)
        if wins and not old.reached:
            leader.trial, leader.halved_at = new, (*leader.halved_at, round(epochs, 3))
        loser = old if leader.trial is new else new
        self._spend(loser, seconds, dollars, cost)
        loser.close()
        return leader.trial is new


def better_half(losses: Mapping[Candidate, float], initial: float) -> list[Candidate]:
    """Return the candidates that continue. Losses within `TIE` of the best are equal, relative to the initial loss.

    Among equals, larger steps and then more groups are preferred. Of more than three, one with most groups stays:
    a short trial shows that its steps are fast, and noise may hide it.
    """
    best = min(losses.values())
    tie = TIE * ((initial if initial < inf else max(losses.values())) - best)

    def rank(each: Candidate) -> tuple[float, float, float]:
        if losses[each] - best <= tie:
            return 0, -each.reach, -each.setup.groups
        return 1, losses[each], 0

    ranked = [each for each in sorted(losses, key=rank) if losses[each] < inf]
    kept = ranked[: max(1, len(losses) // 2)]
    most = max((each.setup.groups for each in ranked), default=0)
    if ranked and len(losses) > 3 and all(each.setup.groups < most for each in kept):
        kept[-1:] = [next(each for each in ranked if each.setup.groups == most)]
    return kept


def stopped_learning(curve: Sequence[tuple[float, float, float]]) -> bool:
    """Return whether the second half of a run has made no progress. `curve` has seconds, epochs and loss."""
    if len(curve) < LEAST_LOOKS:
        return False
    seconds = curve[-1][0]
    best = min(each[2] for each in curve)
    before = min(each[2] for each in curve if each[0] <= seconds / 2)
    return before - best < NO_PROGRESS * (curve[0][2] - best)
