"""Predicted durations of submitted jobs."""

from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.predict.predictor import Predictor

Range = tuple[float, float, float]
"""Seconds, and their 10 % and 90 % quantiles."""


def predicted(predictor: Predictor, job: JobRequest, now: float, estimate: float | None) -> Range:
    """Return a prediction as a tuple with low <= seconds <= high."""
    found = predictor.predict(job, now, estimate)
    return found.seconds, min(found.low, found.seconds), max(found.high, found.seconds)
