"""The options of a plan, from what its search has found: rehearsals, the trial of the best candidate, and losers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite

from oddlot.core.support.text import counted, duration
from oddlot.history.goals import Term
from oddlot.planner.plan_options import PlanOption, Range
from oddlot.planner.rehearsals import Rehearsal
from oddlot.planner.search import Leader, Loser


def rehearsed_options(bare: PlanOption, rehearsed: Mapping[str, Sequence[Rehearsal]]) -> list[PlanOption]:
    """Return an option for each purchase option with a rehearsal. `bare` has the candidate."""
    found = list[PlanOption]()
    for bought, runs in rehearsed.items():
        if not runs:  # stopped before the first
            continue
        seconds = Range.of([run.seconds for run in runs])
        dollars = Range.of([run.dollars for run in runs])
        why, missed = counted(len(runs), "rehearsal"), sum(not isfinite(run.seconds) for run in runs)
        why = f"reached the goal in {len(runs) - missed} of {why}" if missed else why
        ended = next((run.ended for run in runs if run.ended), "")
        why += f"; one {ended}" if ended else ""
        middle = sorted(runs, key=lambda run: run.seconds)[len(runs) // 2]
        option = replace(bare, bought=bought, why=why, seconds=seconds, dollars=dollars)
        found.append(replace(option, is_complete=True, curve=middle.curve))
    return found


def searched_option(bare: PlanOption, leader: Leader, goal: Term, *, is_stopped: bool) -> PlanOption:
    """Return the option of the best candidate without rehearsals."""
    at = leader.trial.reached
    pair = (at.seconds, at.dollars) if at else (inf, inf)
    seconds, dollars = (Range.of([value]) for value in pair)
    why = "1 run, of the search" if at else _why_not(leader, goal, is_stopped)
    option = replace(bare, why=why, seconds=seconds, dollars=dollars)
    return replace(option, is_complete=at is not None, curve=(*leader.raced, *leader.curve))


def _why_not(leader: Leader, goal: Term, is_stopped: bool) -> str:
    """Return what a trial reached without the goal."""
    values = [found for each in leader.trial.history if (found := each.metrics.get(goal.figure))]
    best = (max if goal.compare.startswith(">") else min)(values, default=None)
    when = f"in {duration(leader.trial.seconds)}"
    if is_stopped:
        return f"was stopped {when}"
    reached = "was not evaluated" if best is None else f"reached {goal.figure} {best:.3g}"
    return f"{reached} {when}" + (f" and {leader.trial.ended}" if leader.trial.ended else "")


def given_up_option(
    bare: PlanOption, loser: Loser, leader: Leader | None, best: PlanOption | None
) -> PlanOption:
    """Return the option of a candidate that was given up.

    Its time and cost are estimated from the time at which the leader had the same loss, and the leader's option `best`.
    """
    if loser.ended or not isfinite(loser.loss):
        return replace(bare, why=loser.ended or "diverged")
    seconds = leader and leader.seconds_at(loser.loss)
    if not seconds or best is None:
        return replace(bare, why=f"given up at {duration(loser.seconds)} with loss {loser.loss:.3g}")
    slower = loser.seconds / seconds
    times, costs = (
        (each and isfinite(each.high) and Range(*(slower * value for value in each))) or None
        for each in (best.seconds, best.dollars)
    )
    why = f"given up at {duration(loser.seconds)}; the best had its loss at {duration(seconds)}"
    return replace(bare, why=why, seconds=times, dollars=costs)
