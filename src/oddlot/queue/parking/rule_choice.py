"""The choice of a rule and its settings on one part of a series, and its test on a later part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from typing import Any

import numpy as np

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.parking import (
    Forecast,
    ForecastRule,
    ForecastSettings,
    ParkingController,
    ParkingRule,
    PeakRule,
    PeakSettings,
)
from oddlot.queue.parking.forecast import DirectForecaster, PublishedForecaster
from oddlot.queue.parking.node_series import TICK, TICKS_PER_DAY, NodeSeries
from oddlot.queue.parking.parked_cluster import ParkedCluster, ParkingFigures, figures_of, powered_by

Settings = PeakSettings | ForecastSettings
DAY = 86_400.0
VALIDATION_DAYS = 30
TEST_DAYS = 14
LEAST_DAYS = 3
"""Fewest days of the training, the validation and the test."""
WINDOWS = (6, 12, 18, 24, 36, 72, 144)
BUFFERS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.12, 0.15)
"""Buffers as shares of the machines."""
FUTURES = (12, 18, 30)
PAST_DROPS = (None, 0.1, 1.0)
FUTURE_DROPS = (-2.0, 0.0, 1.0)
KEEPS = (6, 12)
RULES = {
    "peak": "most machines of the last hours",
    "forecast": "forecast of what is known",
    "published": "published forecast, sees the future",
}
"""Descriptions of the rules by name."""


@dataclass(frozen=True)
class Limits:
    """What a rule must keep on the validation part."""

    wakeups_per_day: float = 0.5
    unserved_share: float = 0.005

    def keeps(self, figures: ParkingFigures) -> bool:
        """Return whether the figures are within the limits."""
        return (
            figures.wakeups_per_day <= self.wakeups_per_day and figures.unserved_share <= self.unserved_share
        )


@dataclass(frozen=True)
class ChosenRule:
    """A rule with the settings that were best on the validation part, and its figures."""

    name: str
    settings: Settings
    validation: ParkingFigures
    test: ParkingFigures
    curve: tuple[tuple[int, ParkingFigures], ...]
    """Buffers with their figures on the test part, everything else as chosen."""
    rmse: float | None = None
    """Error of the near forecast on the test part, in machines."""

    @property
    def sees_future(self) -> bool:
        """Whether the rule cannot be used in practice."""
        return self.name == "published"

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        curve = [{"buffer": buffer, **asdict(figures)} for buffer, figures in self.curve]
        plain = {"validation": asdict(self.validation), "test": asdict(self.test), "curve": curve}
        return {"rule": self.name, "settings": asdict(self.settings), **plain, "rmse": self.rmse}


@dataclass(frozen=True)
class Parts:
    """A series in three parts: the first for training, the next for the choice of settings, the last for the test."""

    series: NodeSeries
    validation_from: int
    """First tick of the validation."""
    test_from: int

    @classmethod
    def of(cls, series: NodeSeries, test_from: float | None = None, days: int = TEST_DAYS) -> "Parts":
        """Return the parts for a test of `days` days from `test_from` on. By default, it ends the series."""
        end = series.start + TICK * len(series)
        start = end - days * DAY if test_from is None else test_from
        first = round((start - series.start) / TICK)
        if test_from is not None and not 0 <= first < len(series):
            days_of = _days(series)
            message = f"the test would start on {_day(start)}, but the series has {days_of}: pass another --test-from"
            raise UsageError(message, "test_outside_series", test_from=_day(start), series=days_of)
        stop = min(len(series), first + days * TICKS_PER_DAY)
        validation = min(VALIDATION_DAYS * TICKS_PER_DAY, int(0.6 * first))
        shortest = min(first - validation, validation, stop - first)
        if shortest < LEAST_DAYS * TICKS_PER_DAY:
            message = (
                f"the series has {len(series) / TICKS_PER_DAY:.1f} days: training, choice of the settings and test "
                f"need {LEAST_DAYS} days each. Pass a longer series, or a smaller --test-days"
            )
            raise UsageError(message, "series_too_short", days=len(series) / TICKS_PER_DAY)
        cut = NodeSeries(series.start, series.used[:stop], series.total[:stop], series.problems)
        return cls(cut, first - validation, first)

    def until(self, tick: int) -> NodeSeries:
        """Return the series before a tick."""
        series = self.series
        return NodeSeries(series.start, series.used[:tick], series.total[:tick])

    @property
    def validation(self) -> NodeSeries:
        """The part on which settings are chosen."""
        return self._part(self.validation_from, self.test_from)

    @property
    def test(self) -> NodeSeries:
        """The part that no setting has seen."""
        return self._part(self.test_from, len(self.series))

    def _part(self, first: int, stop: int) -> NodeSeries:
        series = self.series
        return NodeSeries(series.start + TICK * first, series.used[first:stop], series.total[first:stop])

    @property
    def days(self) -> str:
        """First and last day of the test."""
        return _days(self.test)


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


def _days(series: NodeSeries) -> str:
    return f"{_day(series.start)} to {_day(series.start + TICK * (len(series) - 1))}"


def choose(parts: Parts, limits: Limits, names: Sequence[str] = tuple(RULES)) -> dict[str, ChosenRule]:
    """Return each rule with the settings of the highest utilization on the validation part, within the limits.

    A rule that keeps the limits with no setting is left out. Models are trained on what precedes a part.
    """
    found = {}
    for name in names:
        forecasts = {} if name == "peak" else _forecasts(parts, name)
        if chosen := _chosen(name, parts, limits, forecasts):
            found[name] = chosen
    return found


def default_of(chosen: Mapping[str, ChosenRule]) -> ChosenRule | None:
    """Return the rule with the highest utilization on the validation part, of those that can be used in practice."""
    usable = [one for one in chosen.values() if not one.sees_future]
    return max(usable, key=lambda one: one.validation.utilization_after, default=None)


def rule_of(settings: Settings) -> ParkingRule:
    """Return a new rule with these settings."""
    return PeakRule(settings) if isinstance(settings, PeakSettings) else ForecastRule(settings)


Forecasts = Mapping[int, tuple[Sequence[Forecast], Sequence[Forecast]]]
"""Forecasts of the validation and of the test, by number of ticks."""


def _forecasts(parts: Parts, name: str) -> Forecasts:
    kind = DirectForecaster if name == "forecast" else PublishedForecaster
    found = {}
    for future in FUTURES:
        first, second = parts.validation_from, parts.test_from
        # forecasts of the validation read no tick of the test, the published ones excepted
        before = kind(parts.until(first), future).of(parts.until(second), first)
        found[future] = before, kind(parts.until(second), future).of(parts.series, second)
    return found


def _grid(name: str, total: int) -> Iterator[Settings]:
    buffers = _buffers(total)
    if name == "peak":
        yield from (PeakSettings(window, buffer) for window, buffer in product(WINDOWS, buffers))
        return
    for future, past, drop, buffer, keep in product(FUTURES, PAST_DROPS, FUTURE_DROPS, buffers, KEEPS):
        yield ForecastSettings(future=future, past_drop=past, future_drop=drop, buffer=buffer, keep=keep)


def _buffers(total: int) -> list[int]:
    return sorted({0, 1, 2, *(round(share * total) for share in BUFFERS)})


def _chosen(name: str, parts: Parts, limits: Limits, forecasts: Forecasts) -> ChosenRule | None:
    validation, test = parts.validation, parts.test
    total = int(np.median(validation.total))
    best: tuple[ParkingFigures, Settings] | None = None
    for settings in _grid(name, total):
        figures = _figures(settings, validation, forecasts, 0)
        if limits.keeps(figures) and (not best or figures.utilization_after > best[0].utilization_after):
            best = figures, settings
    if best is None:
        return None
    figures, chosen = best
    buffers = _buffers(total)
    curve = tuple(
        (buffer, _figures(replace(chosen, buffer=buffer), test, forecasts, 1)) for buffer in buffers
    )
    rmse = None
    if isinstance(chosen, ForecastSettings):
        rmse = _rmse(test, forecasts[chosen.future][1], chosen.future)
    cluster = ParkedCluster(ParkingController(rule_of(chosen)))
    powered = cluster.run(test, _given(chosen, forecasts, 1))
    return ChosenRule(name, chosen, figures, figures_of(test, powered), curve, rmse)


def _figures(settings: Settings, series: NodeSeries, forecasts: Forecasts, part: int) -> ParkingFigures:
    return figures_of(series, powered_by(rule_of(settings), series, _given(settings, forecasts, part)))


def _given(settings: Settings, forecasts: Forecasts, part: int) -> Sequence[Forecast] | None:
    return forecasts[settings.future][part] if isinstance(settings, ForecastSettings) else None


def _rmse(series: NodeSeries, forecasts: Sequence[Forecast], future: int) -> float:
    used = series.used.astype(float)
    errors = [
        forecast.near - used[tick : tick + future].mean()
        for tick, forecast in enumerate(forecasts)
        if tick + future <= len(used)
    ]
    return float(np.sqrt(np.mean(np.square(errors))))
