"""Rehearsals: complete runs of a plan with seeds that the search has not seen."""

from math import inf
from typing import NamedTuple

from oddlot.core.strategy import Strategy
from oddlot.history.goals import Term
from oddlot.machines.market import Fleet
from oddlot.planner.timeline import Timeline
from oddlot.planner.trial import Bench, Trial
from oddlot.run.config import RunConfig

MOST_LOOKS = 40
"""Largest number of evaluations in the curve of a rehearsal, about."""
REHEARSED = 3.0
"""Multiple of the search's epochs after which a rehearsal without the goal ends."""


class Rehearsal(NamedTuple):
    """A complete run of a plan with another seed."""

    seconds: float
    """Time to the goal; infinity if it was not reached."""
    dollars: float
    spent_seconds: float
    """Time of the run."""
    spent_dollars: float
    curve: tuple[tuple[float, float, float], ...] = ()
    """Seconds, epochs and evaluation loss, from the start of the run."""
    ended: str = ""
    """Text that the fleet had no machines left. Empty otherwise."""


def rehearse(
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
        initial = trial.evaluate().get("loss", inf)
        seconds, dollars, most_epochs = limits
        trial.advance(seconds, dollars, min(most_epochs, REHEARSED * epochs))
        at = trial.reached
        trial.close()
    finally:
        timeline.close()
    found = (at.seconds, at.dollars) if at else (inf, inf)
    looks = [(each.seconds, each.epochs, each.metrics.get("loss", inf)) for each in trial.history]
    every = max(1, len(looks) // MOST_LOOKS)
    curve = ((0.0, 0.0, initial), *looks[every - 1 :: every])
    return Rehearsal(*found, trial.seconds, trial.dollars, curve, trial.ended)
