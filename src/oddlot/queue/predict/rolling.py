"""Prediction by the durations of similar jobs."""

from math import log

from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.predict.duration_stats import KEEP, DurationStats
from oddlot.queue.predict.error_range import UNKNOWN, ErrorRange
from oddlot.queue.predict.history import JobHistory, Match
from oddlot.queue.predict.predictor import Prediction, in_bounds

DEFAULT_SECONDS = 600.0
"""Prediction without any history or estimate."""
FEW = 4.0
"""Number of jobs at which their own deviation counts half."""


class RollingPredictor:
    """Predicts the mean of the jobs with the most similar name, user and GPUs (Helios, section 4.2.2).

    Means are geometric: a single long job does not change them much, and they order log-normal durations as well.
    """

    def __init__(self, keep: float = KEEP) -> None:
        self.history = JobHistory(keep)
        self.errors = {True: ErrorRange(), False: ErrorRange()}
        """Errors of predictions by a name, and of others."""
        self.open: dict[str, tuple[float, bool]] = {}
        """Logarithms of the predictions of jobs that have not ended, and whether they were by a name."""

    def predict(self, job: JobRequest, now: float, estimate: float | None = None) -> Prediction:
        match = self.history.match(job)
        middle, deviation = center(match, estimate)
        self.open[job.id] = middle, match.is_named
        return self.errors[match.is_named].around(middle, deviation)

    def observe(self, job: JobRequest, duration: float, now: float) -> None:
        middle, is_named = self.open.pop(job.id, (None, False))
        if not self.history.add(job, duration) or middle is None:
            return
        self.errors[is_named].add(log(in_bounds(duration)) - middle)


def center(match: Match, estimate: float | None) -> tuple[float, float]:
    """Return the logarithm of the predicted seconds, and its standard deviation."""
    if estimate is not None and not match.is_named:
        return log(in_bounds(estimate)), UNKNOWN / 2
    if match.stats is None:
        return log(DEFAULT_SECONDS), UNKNOWN
    return match.stats.mean, deviation_of(match.stats)


def deviation_of(stats: DurationStats) -> float:
    """Return the standard deviation of the logarithms. With few jobs, it is mixed with an unknown one."""
    weight = stats.count / (stats.count + FEW)
    return weight * stats.deviation + (1.0 - weight) * UNKNOWN
