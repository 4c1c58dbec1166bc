"""Prediction by similar jobs and by a model of the history, merged (Helios, section 4.2.2)."""

from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from oddlot.core.support.errors import InvalidValue
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.extra import extra
from oddlot.queue.predict.duration_stats import KEEP
from oddlot.queue.predict.error_range import ErrorRange
from oddlot.queue.predict.features import CATEGORIES, NAMES, Features
from oddlot.queue.predict.history import JobHistory
from oddlot.queue.predict.predictor import Prediction, in_bounds
from oddlot.queue.predict.rolling import center

ROLLING_WEIGHT = 0.1
"""Weight of the rolling prediction. The model has the rest."""
FIRST_JOBS = 100
"""Number of ended jobs at the first training."""
MAX_JOBS = 20_000
"""Number of ended jobs that a training uses, the latest."""
MODEL = {
    "objective": "l2",
    "learning_rate": 0.03,
    "num_leaves": 7,
    "min_data_in_leaf": 50,
    "cat_smooth": 50.0,
    "cat_l2": 50.0,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.85,
    "bagging_freq": 1,
    "num_threads": 1,  # two threads wait for each other if other programs use the cores
    "deterministic": True,
    "force_row_wise": True,
    "seed": 1,
    "verbosity": -1,
}
"""Few small trees: a correction of the pooled mean (see `LearntPredictor`)."""
ROUNDS = 60


class LearntPredictor:
    """Merges the prediction of similar jobs with the one of a model, in logarithms of seconds.

    The model's prediction is the pooled mean of all similar jobs, corrected by LightGBM. LightGBM is trained with the
    features of each job at its submission, and never sees others. It is trained after 100 ended jobs, then whenever
    their number has doubled, and later after `retrain_every` more.

    Parameters
    ----------
    retrain_every
        Number of ended jobs between two trainings.
    rolling_weight
        Weight of the prediction of similar jobs.
    """

    def __init__(
        self, retrain_every: int = 1_000, rolling_weight: float = ROLLING_WEIGHT, keep: float = KEEP
    ) -> None:
        if retrain_every < 1:
            raise InvalidValue("retrain_every", retrain_every, "at least 1")
        self.retrain_every, self.rolling_weight = retrain_every, rolling_weight
        self.history, self.features = JobHistory(keep), Features()
        self.errors = {True: ErrorRange(), False: ErrorRange()}
        """Errors of predictions by a name, and of others."""
        self.open: dict[str, _Seen] = {}
        """First predictions of the jobs that have not ended."""
        self.rows: list[list[float]] = []
        """Features of the jobs that have ended."""
        self.targets: list[float] = []
        """Logarithms of their seconds, minus the pooled means at their submission."""
        self.model: Any = None
        self._next = min(FIRST_JOBS, retrain_every)
        self._ended = 0

    def predict(self, job: JobRequest, now: float, estimate: float | None = None) -> Prediction:
        seen = self._seen(job, estimate)
        self.open.setdefault(job.id, seen)  # later predictions of the job know more than at its submission
        return self.errors[seen.is_named].around(seen.middle, seen.deviation)

    def observe(self, job: JobRequest, duration: float, now: float) -> None:
        seen = self.open.pop(job.id, None) or self._seen(job, None)
        if not self.history.add(job, duration):
            return
        target = log(in_bounds(duration))
        self.errors[seen.is_named].add(target - seen.middle)
        self.rows.append(seen.row)
        self.targets.append(target - seen.pooled)
        if len(self.rows) > 2 * MAX_JOBS:
            del self.rows[:-MAX_JOBS], self.targets[:-MAX_JOBS]
        self._ended += 1
        if self._ended >= self._next:
            self._next = self._ended + min(self._ended, self.retrain_every)
            self._train()

    def _train(self) -> None:
        lightgbm = extra("lightgbm", "prediction")
        data = lightgbm.Dataset(
            np.array(self.rows[-MAX_JOBS:]),
            np.array(self.targets[-MAX_JOBS:]),
            feature_name=[name.replace(" ", "_") for name in NAMES],
            categorical_feature=list(CATEGORIES),
        )
        self.model = lightgbm.train(MODEL, data, ROUNDS)

    def _seen(self, job: JobRequest, estimate: float | None) -> "_Seen":
        """Return the prediction of a job with what is known now."""
        match = self.history.match(job)
        rolling, deviation = center(match, estimate)
        pooled = self.history.pooled(job, match)
        row = self.features.of(job, self.history, match, rolling)
        if pooled is None or (estimate is not None and not match.is_named):
            return _Seen(rolling, deviation, match.is_named, row, rolling if pooled is None else pooled)
        learnt = pooled
        if self.model is not None:
            learnt += float(self.model.predict(np.array([row]), num_threads=1)[0])
        middle = self.rolling_weight * rolling + (1.0 - self.rolling_weight) * learnt
        return _Seen(middle, deviation, match.is_named, row, pooled)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A prediction and its features, as they were at the submission of a job."""

    middle: float
    """Logarithm of the predicted seconds."""
    deviation: float
    is_named: bool
    """Whether jobs with such a name had ended."""
    row: list[float]
    pooled: float
    """Mean logarithm of the seconds of all similar jobs."""
