"""Forecasts of the demand by LightGBM."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oddlot.queue.core.parking import Forecast
from oddlot.queue.extra import extra
from oddlot.queue.parking.node_series import TICK, TICKS_PER_DAY, NodeSeries

Array = NDArray[np.float64]
MODEL = {
    "objective": "l2",
    "learning_rate": 0.03,
    "num_leaves": 4,
    "min_data_in_leaf": 150,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.85,
    "bagging_freq": 1,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 1,
    "verbosity": -1,
}
"""Few small trees: larger ones had larger errors on November of Philly, after a training on October."""
ROUNDS = 60
PUBLISHED = {
    **MODEL,
    "learning_rate": 0.05,
    "num_leaves": 31,
    "min_data_in_leaf": 20,
    "feature_fraction": 1.0,
}
PUBLISHED_ROUNDS = 150
LAGS = (1, 2, 3, 6, 12, 18, 36, TICKS_PER_DAY, 7 * TICKS_PER_DAY)
WINDOWS = (3, 6, 18, TICKS_PER_DAY)
HIDDEN_TICKS = 6
"""The newest values that a row of the published form sees are this old."""


def known_features(series: NodeSeries) -> Array:
    """Return the features of each tick: (ticks, features). A row depends on no later tick.

    The demand, its earlier values, its means, deviations and maxima, the hour, and the day of the week.
    """
    used = series.used.astype(float)
    columns = [used, series.total.astype(float)]
    columns += [used - _earlier(used, lag) for lag in LAGS]
    for window in WINDOWS:
        columns += [used - _rolling(used, window, np.mean), _rolling(used, window, np.std)]
        columns += [_rolling(used, window, np.max) - used]
    return np.column_stack([*columns, *_calendar(series)])


def published_features(series: NodeSeries) -> Array:
    """Return the features of the published code: (ticks, features).

    The demand at least an hour before the tick, and the calendar. A forecast of the next hours reads rows of later
    ticks, with demand that is not known yet.
    """
    used = series.used.astype(float)
    old = _earlier(used, HIDDEN_TICKS)
    columns = [_rolling(old, window, one) for window in (3, 6) for one in (np.mean, np.median, np.std)]
    around = 0.5 * _earlier(used, 18) + 0.25 * (_earlier(used, 17) + _earlier(used, 19))
    return np.column_stack([*columns, _earlier(used, 18), around, *_calendar(series)])


class DirectForecaster:
    """Forecasts means of the next ticks with one model for each number of ticks, from what is known at a tick."""

    def __init__(self, train: NodeSeries, future: int) -> None:
        self.future = future
        self.models = [
            _fitted(_changes(train, ticks), known_features(train), MODEL, ROUNDS)
            for ticks in (future, 2 * future)
        ]

    def of(self, series: NodeSeries, start: int) -> Sequence[Forecast]:
        """Return the forecasts at the ticks of a series from `start` on. Earlier ticks are history."""
        used, rows = series.used.astype(float), known_features(series)[start:]
        near, far = (used[start:] + np.asarray(model.predict(rows)) for model in self.models)
        return [Forecast(float(one), float(two)) for one, two in zip(near, far, strict=True)]


class PublishedForecaster:
    """The forecast of the published code, which sees the future: for comparison only."""

    def __init__(self, train: NodeSeries, future: int) -> None:
        self.future = future
        self.model = _fitted(train.used.astype(float), published_features(train), PUBLISHED, PUBLISHED_ROUNDS)

    def of(self, series: NodeSeries, start: int) -> Sequence[Forecast]:
        """Return the forecasts at the ticks of a series from `start` on."""
        found = np.asarray(self.model.predict(published_features(series)))
        ticks = range(start, len(series))
        return [
            Forecast(
                float(found[tick : tick + self.future].mean()),
                float(found[tick : tick + 2 * self.future].mean()),
            )
            for tick in ticks
        ]


def _fitted(target: Array, rows: Array, model: dict[str, Any], rounds: int) -> Any:
    lightgbm = extra("lightgbm", "a forecast")
    known = np.isfinite(target)
    return lightgbm.train(model, lightgbm.Dataset(rows[known], target[known]), rounds)


def _changes(series: NodeSeries, ticks: int) -> Array:
    """Return the mean of each tick and the `ticks - 1` after it, minus the tick's value. NaN at the end."""
    used = series.used.astype(float)
    sums = np.concatenate([[0.0], np.cumsum(used)])
    means = np.full(len(used), np.nan)
    if len(used) >= ticks:
        means[: len(used) - ticks + 1] = (sums[ticks:] - sums[:-ticks]) / ticks
    return np.asarray(means - used)


def _earlier(values: Array, ticks: int) -> Array:
    """Return the values that many ticks before. NaN where there are none."""
    found: Array = np.full(len(values), np.nan)
    found[ticks:] = values[:-ticks]
    return found


def _rolling(values: Array, window: int, figure: Any) -> Array:
    """Return a figure of the last `window` values. NaN where there are not enough."""
    found: Array = np.full(len(values), np.nan)
    if len(values) >= window:
        found[window - 1 :] = figure(np.lib.stride_tricks.sliding_window_view(values, window), axis=1)
    return found


def _calendar(series: NodeSeries) -> list[Array]:
    days = series.times / (TICK * TICKS_PER_DAY)
    return [(days % 1) * 24, (np.floor(days) + 4) % 7]
