"""The published model of prediction errors, for traces without names of jobs."""

from random import Random

from oddlot.queue.predict.predictor import SHORTEST_SECONDS

BANDS = ((0.1, 0.0, 0.1), (0.5, 0.1, 0.5), (0.7, 0.5, 1.0), (0.9, 1.0, 10.0), (1.0, 10.0, 100.0))
"""Cumulative share of jobs, and the limits of the relative error."""


def predicted(duration: float, random: Random) -> float:
    """Return a prediction with an error of Helios' model, in seconds. Predictions below 1 s are 1 s.

    The relative error is up to 0.1 for 10 % of the jobs, 0.1-0.5 for 40 %, 0.5-1 for 20 %, 1-10 for 20 % and 10-100 for
    10 %, in both directions. Source: HeliosArtifact, QSSF Service, estimator for Philly.
    """
    share = random.random()
    low, high = next((low, high) for until, low, high in BANDS if share < until)
    error = random.uniform(low, high) * random.choice((-1.0, 1.0))
    return max(SHORTEST_SECONDS, duration * (1.0 + error))
