"""Predicted durations of submitted jobs, from the history in the database."""

from collections.abc import Iterable

from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.predict.predictor import Predictor
from oddlot.queue.predict.predictor_registry import predictor_of

Range = tuple[float, float, float]
"""Seconds, and their 10 % and 90 % quantiles."""


def taught_predictor(name: str, history: Iterable[tuple[JobRequest, float, float]]) -> Predictor:
    """Return a predictor by name or import path that has seen finished jobs, with their durations and ends."""
    predictor = predictor_of(name)
    for job, duration, ended in history:
        predictor.observe(job, duration, ended)
    return predictor


def predicted(predictor: Predictor, job: JobRequest, now: float, estimate: float | None) -> Range:
    """Return a prediction as a tuple with low <= seconds <= high."""
    found = predictor.predict(job, now, estimate)
    return found.seconds, min(found.low, found.seconds), max(found.high, found.seconds)
