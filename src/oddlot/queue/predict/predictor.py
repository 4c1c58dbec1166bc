"""What a predictor of durations is."""

from dataclasses import dataclass
from typing import Protocol

from oddlot.queue.core.jobs import JobRequest

SHORTEST_SECONDS = 1.0
"""Smallest prediction, and smallest duration that is learnt."""
LONGEST_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted duration of a job, in seconds. A job takes less than `low` in 10 %, more than `high` in 10 %."""

    seconds: float
    low: float
    high: float


class Predictor(Protocol):
    """Predicts the duration of a job from the jobs that have ended."""

    def predict(self, job: JobRequest, now: float, estimate: float | None = None) -> Prediction:
        """Return the prediction at the time `now`, in seconds.

        `estimate`: seconds that a planner predicts. They are used if no job with such a name has ended.
        """
        ...

    def observe(self, job: JobRequest, duration: float, now: float) -> None:
        """Learn from a job that ended at `now` after `duration` seconds. Times that are no numbers are ignored."""
        ...


def in_bounds(seconds: float) -> float:
    """Return a duration within the bounds of predictions. NaN becomes the smallest."""
    return min(max(SHORTEST_SECONDS, seconds), LONGEST_SECONDS)
