"""Series of used machines, forecasts, the choice of a rule, and its test."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from oddlot.core.support.errors import UsageError
from oddlot.queue.core.parking import ForecastSettings, ParkingController, PeakSettings
from oddlot.queue.parking import rule_choice
from oddlot.queue.parking.forecast import DirectForecaster, PublishedForecaster, known_features
from oddlot.queue.parking.node_series import TICK, TICKS_PER_DAY, NodeSeries, read_series
from oddlot.queue.parking.parked_cluster import ParkedCluster, figures_of, powered_by
from oddlot.queue.parking.rule_choice import ChosenRule, Limits, Parts, choose, default_of, rule_of
from tests.command import Oddlot
from tests.transcripts import raises


def daily(days: int, seed: int = 0) -> NodeSeries:
    """Return a demand with a profile over the day."""
    ticks = np.arange(days * TICKS_PER_DAY)
    noise = np.random.default_rng(seed).normal(0.0, 2.0, len(ticks))
    used = np.clip(60 + 25 * np.sin(2 * np.pi * ticks / TICKS_PER_DAY) + noise, 0, 100)
    return NodeSeries(0.0, used.round().astype(np.int64), np.full(len(ticks), 100))


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_choice, "FUTURES", (12,))
    monkeypatch.setattr(rule_choice, "BUFFERS", (0.05, 0.1, 0.15))


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_series_has_the_maximum_of_ten_minutes_and_fills_gaps(tmp_path: Path) -> None:
    lines = [
        "time,active,total",
        "2020-01-01 00:00:00,3,10",
        "2020-01-01 00:09:59,5,10",
        "2020-01-01 00:10:00,4,10",
    ]
    lines += ["2020-01-01 00:40:00,1,12", "x,1,1", "2020-01-01 00:41:00,nan,10", "2020-01-01 00:42:00,-1,10"]
    lines += ["2020-01-01 00:43:00,13,10", "2020-01-01 00:43:00", "2020-01-01 00:44:00,1e99,1e99"]
    series = read_series(write(tmp_path / "a.csv", *lines))
    assert series.used.tolist() == [5, 4, 4, 4, 1]
    assert series.total.tolist() == [10, 10, 10, 10, 12]
    assert series.problems == 6
    assert series.start == datetime(2020, 1, 1, tzinfo=UTC).timestamp()


def test_series_of_gpus_is_divided_by_the_gpus_of_a_machine(tmp_path: Path) -> None:
    series = read_series(write(tmp_path / "a.csv", "time;running_gpu_num;total_gpu_num", "0;9;16"))
    assert (series.used.tolist(), series.total.tolist()) == ([2], [2])


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "missing_column"),
        (b"time,used\n1,2\n", "missing_column"),
        (b"time,used,total\n", "no_series"),
        (b"time,used,total\nx,1,2\n", "no_series"),
        (b"time,used,total\n0,1,2\n900000000000,1,2\n", "series_too_long"),
        (b"\xff\xfe\x00", "not_utf8"),
    ],
)
def test_unusable_series_is_an_error(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with raises(UsageError, code):
        read_series(path)


def test_features_and_direct_forecasts_do_not_depend_on_later_ticks() -> None:
    series, kept = daily(12), 10 * TICKS_PER_DAY
    used = series.used.copy()
    used[kept:] = np.random.default_rng(1).permutation(used[kept:]) // 2
    changed = NodeSeries(series.start, used, series.total)
    assert np.array_equal(known_features(series)[:kept], known_features(changed)[:kept], equal_nan=True)
    train = NodeSeries(0.0, series.used[: 7 * TICKS_PER_DAY], series.total[: 7 * TICKS_PER_DAY])
    start = 8 * TICKS_PER_DAY
    for kind, leaks in ((DirectForecaster, False), (PublishedForecaster, True)):
        model = kind(train, 18)
        one, other = model.of(series, start)[: kept - start], model.of(changed, start)[: kept - start]
        assert (one != other) == leaks


def test_direct_forecast_is_better_than_the_last_value() -> None:
    series, future = daily(30), 18
    start = 25 * TICKS_PER_DAY
    train = NodeSeries(0.0, series.used[:start], series.total[:start])
    forecasts = DirectForecaster(train, future).of(series, start)[: -2 * future]
    used = series.used.astype(float)
    truth = [used[tick : tick + future].mean() for tick in range(start, start + len(forecasts))]
    error = np.mean([(one.near - true) ** 2 for one, true in zip(forecasts, truth, strict=True)])
    assert error < 0.5 * np.mean((used[start : start + len(forecasts)] - truth) ** 2)


def test_figures_count_wakeups_and_unserved_ticks() -> None:
    series = NodeSeries(0.0, np.array([5, 5, 8, 4]), np.array([10, 10, 10, 10]))
    found = figures_of(series, np.array([6, 6, 9, 8]))
    days = 4 / TICKS_PER_DAY
    assert found.utilization_before == pytest.approx(0.55)
    assert found.utilization_after == pytest.approx((5 / 6 + 5 / 6 + 8 / 9 + 4 / 8) / 4)
    assert (found.unserved_share, found.parked) == (0.25, 2.75)
    assert found.wakeups_per_day * days == pytest.approx(1)
    assert found.parkings_per_day * days == pytest.approx(2)


def test_parts_follow_each_other() -> None:
    series = daily(60)
    parts = Parts.of(series, 40 * 86_400.0, 10)
    assert (len(parts.validation), len(parts.test)) == (24 * TICKS_PER_DAY, 10 * TICKS_PER_DAY)
    assert parts.validation.start == 16 * 86_400.0
    assert parts.days == "1970-02-10 to 1970-02-19"
    assert Parts.of(series).test.start + TICK * len(Parts.of(series).test) == 60 * 86_400.0
    for arguments in ((2 * 86_400.0, 10), (59 * 86_400.0, 10)):
        with raises(UsageError, "series_too_short"):
            Parts.of(series, *arguments)
    for test_from in (1e9, -1e9, 60 * 86_400.0):
        with raises(UsageError, "test_outside_series", series="1970-01-01 to 1970-03-01"):
            Parts.of(series, test_from)


def test_choice_sees_nothing_of_the_test(small_grid: None) -> None:
    series = daily(24)
    parts = Parts.of(series, days=5)
    used = series.used.copy()
    used[parts.test_from :] = 100 - used[parts.test_from :]
    other = Parts.of(NodeSeries(0.0, used, series.total), days=5)
    limits = Limits(12.0, 0.1)
    names = ("peak", "forecast")
    one, two = choose(parts, limits, names), choose(other, limits, names)
    assert set(one) == set(names)
    for name in names:
        assert (one[name].settings, one[name].validation) == (two[name].settings, two[name].validation)
        assert one[name].test != two[name].test
        assert limits.keeps(one[name].validation)
    chosen = default_of(one)
    assert chosen is not None
    assert chosen.validation.utilization_after == max(
        each.validation.utilization_after for each in one.values()
    )
    assert default_of({}) is None


def test_default_is_the_best_usable_rule_before_the_test() -> None:
    def rule(name: str, before: float, tested: float) -> ChosenRule:
        figures = figures_of(NodeSeries(0.0, np.array([1]), np.array([1])), np.array([1]))
        validation, test = (replace(figures, utilization_after=value) for value in (before, tested))
        return ChosenRule(name, PeakSettings(), validation, test, ())

    rules = [rule("peak", 0.8, 0.9), rule("forecast", 0.85, 0.7), rule("published", 0.9, 0.95)]
    chosen = default_of({one.name: one for one in rules})
    assert chosen is not None
    assert chosen.name == "forecast"


def test_simulated_cluster_does_what_the_rule_says() -> None:
    test = daily(5)
    for settings in (PeakSettings(12, 5), ForecastSettings(buffer=5)):
        cluster = ParkedCluster(ParkingController(rule_of(settings)))
        assert np.array_equal(cluster.run(test), powered_by(rule_of(settings), test))


def test_command_prints_rules_and_draws_them(tmp_path: Path, oddlot: Oddlot, small_grid: None) -> None:
    series = daily(24)
    lines = [f"{time},{used},100" for time, used in zip(series.times, series.used, strict=True)]
    path = write(tmp_path / "a.csv", "time,used,total", *lines)
    plot = tmp_path / "a.svg"
    options = ("--test-days", "5", "--max-wakeups", "2", "--max-unserved", "0.02", "--svg", str(plot))
    done = oddlot("queue", "park", str(path), *options, "--json")
    assert done.code == 0, done
    found = json.loads(done.out)
    assert found["default"] in {"peak", "forecast"}
    assert {one["rule"] for one in found["rules"]} >= {"peak"}
    assert plot.read_text().startswith("<svg")
    table = oddlot("queue", "park", str(path), *options[:-2])
    assert f"{found['default']} (default)" in table.out


@pytest.mark.parametrize(
    ("options", "code"),
    [(("--test-from", "soon"), 2), (("--max-wakeups", "0"), 2), (("--test-days", "900"), 2)],
)
def test_command_rejects_invalid_options(
    tmp_path: Path, oddlot: Oddlot, small_grid: None, options: tuple[str, str], code: int
) -> None:
    lines = [f"{600 * tick},{50 + tick % 7 * (tick % 5)},100" for tick in range(20 * TICKS_PER_DAY)]
    path = write(tmp_path / "a.csv", "time,used,total", *lines)
    assert oddlot("queue", "park", str(path), *options).code == code
