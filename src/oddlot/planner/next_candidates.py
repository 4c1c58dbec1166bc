"""The candidates that are rehearsed after the best one has missed a limit."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite

from oddlot.planner.candidates import Candidate, Setup, first_optimizer, rate_of, scaled
from oddlot.planner.plan_options import PlanOption
from oddlot.planner.plan_request import Request
from oddlot.planner.search import Leader, Loser
from oddlot.train.job import Job

MARGIN = 1.5
"""Largest estimate of a candidate to rehearse, relative to the limit. Estimates are rough."""


def next_candidates(
    leader: Leader,
    options: Sequence[PlanOption],
    losers: Iterable[Loser],
    untried: Iterable[Setup],
    times: Mapping[Setup, float],
    job: Job,
    request: Request,
) -> list[Candidate]:
    """Return the candidates that may keep the limits, in the order of their predicted objective.

    Those without a prediction are last.

    Args:
        leader: The candidate that missed a limit.
        options: Its options.
        losers: Candidates that were given up. Their time to the goal is estimated from the loss that they reached.
        untried: Setups that were not tried. Their time to the goal is estimated from their time per sample.
        times: Predicted seconds per sample. Setups without a prediction are not in it.
        job: The job.
        request: The objective and the limits.
    """
    slower: dict[Candidate, float | None] = {
        each.candidate: ratio for each in losers if (ratio := slowdown(each, leader)) < inf
    }
    own = times.get(leader.candidate.setup)
    for setup in untried:
        slower[_alike(setup, leader, job)] = times[setup] / own if own and setup in times else None
    found = dict[Candidate, float]()
    for candidate, factor in slower.items():
        outlook = inf if factor is None else _outlook(factor, leader, options, request)
        if outlook is not None:
            found[candidate] = outlook
    return sorted(found, key=found.__getitem__)


def slowdown(loser: Loser, leader: Leader) -> float:
    """Return the time of a candidate that was given up, relative to the leader's time to the same loss.

    Infinity if it diverged or learned nothing. If the leader never had this loss, its complete time is used.
    """
    if not isfinite(loser.loss):
        return inf
    seconds = leader.seconds_at(loser.loss)
    if seconds is None:
        seconds = leader.trial.seconds
    return loser.seconds / seconds if seconds else inf


def _alike(setup: Setup, leader: Leader, job: Job) -> Candidate:
    """Return the candidate with a learning rate that was changed as much as the leader's."""
    changed = rate_of(leader.candidate.optimizer) / rate_of(first_optimizer(leader.candidate.setup, job))
    return Candidate(setup, scaled(first_optimizer(setup, job), changed))


def _outlook(factor: float, leader: Leader, options: Sequence[PlanOption], request: Request) -> float | None:
    """Return the predicted objective of a candidate that needs `factor` times the leader's time. None: it is too slow.

    A leader that did not reach the goal needs more than the time of its trial.
    """
    most_seconds = MARGIN * 3600 * (inf if request.deadline_hours is None else request.deadline_hours)
    most_dollars = MARGIN * (inf if request.budget_dollars is None else request.budget_dollars)
    found = list[float]()
    for option in options:
        seconds, dollars = leader.trial.seconds, leader.trial.dollars
        if option.seconds and option.dollars and isfinite(option.seconds.low):
            seconds, dollars = option.seconds.low, option.dollars.low
        if factor * seconds <= most_seconds and factor * dollars <= most_dollars:
            found.append(factor * (seconds if request.minimize == "time" else dollars))
    return min(found, default=None)
