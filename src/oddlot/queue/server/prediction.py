"""Predicted durations of submitted jobs, from the history in the database."""

from collections.abc import Iterable
from importlib import import_module
from typing import Protocol

from oddlot.queue.core.jobs import JobRequest

Range = tuple[float, float, float]
"""Seconds, and their 10 % and 90 % quantiles."""


class Predicted(Protocol):
    """A predicted duration."""

    @property
    def seconds(self) -> float:
        """Predicted seconds."""

    @property
    def low(self) -> float:
        """10 % quantile, in seconds."""

    @property
    def high(self) -> float:
        """90 % quantile, in seconds."""


class Predictor(Protocol):
    """Predicts durations, and learns from jobs that have ended."""

    def predict(self, job: JobRequest, now: float, estimate: float | None = None) -> Predicted:
        """Return the prediction. `estimate`: seconds, used if the history says nothing."""

    def observe(self, job: JobRequest, duration: float, now: float) -> None:
        """Take in that a job has ended now."""


PREDICTORS = {
    "learnt": "oddlot.queue.predict.learnt:LearntPredictor",
    "rolling": "oddlot.queue.predict.rolling:RollingPredictor",
}
"""Predictors by name."""


def predictor_of(name: str, history: Iterable[tuple[JobRequest, float, float]]) -> Predictor:
    """Return the predictor with this name or import path ("module:Class"), after the jobs of the history.

    `history`: finished jobs with their durations and ends.
    """
    module, _, attribute = PREDICTORS.get(name, name).partition(":")
    predictor: Predictor = getattr(import_module(module), attribute)()
    for job, duration, ended in history:
        predictor.observe(job, duration, ended)
    return predictor


def predicted(predictor: Predictor, job: JobRequest, now: float, estimate: float | None) -> Range:
    """Return a prediction as a tuple with low <= seconds <= high."""
    found = predictor.predict(job, now, estimate)
    return found.seconds, min(found.low, found.seconds), max(found.high, found.seconds)
