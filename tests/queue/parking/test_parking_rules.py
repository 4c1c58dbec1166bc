"""Rules of parking, and the controller that turns them into commands."""

import pytest

from oddlot.queue.core.commands import ParkMachine, WakeMachine
from oddlot.queue.core.parking import (
    FIRST_TICKS,
    Forecast,
    ForecastRule,
    ForecastSettings,
    MachinesObserved,
    ParkingController,
    PeakRule,
    PeakSettings,
)

FALLING = Forecast(near=30.0, far=20.0)


def test_peak_rule_keeps_the_most_of_the_window_and_wakes_only_in_need() -> None:
    rule = PeakRule(PeakSettings(window=3, buffer=2))
    demand = (10, 8, 8, 8, 9, 10, 11, 13, 99)
    assert [rule.powered(used, 50) for used in demand] == [12, 12, 12, 10, 10, 10, 13, 13, 50]


def settled(**changes: object) -> ForecastRule:
    """Return a rule with 60 machines on, 50 of them needed, after its first ticks."""
    settings: dict[str, object] = {
        "buffer": 10,
        "history": 2,
        "past_drop": 1.0,
        "future_drop": 2.0,
        "keep": 3,
    }
    rule = ForecastRule(ForecastSettings(**(settings | changes)))  # type: ignore[arg-type]
    for _ in range(FIRST_TICKS):
        assert rule.powered(50, 100) == 60
    return rule


def test_forecast_rule_parks_if_demand_falls_and_will_fall() -> None:
    assert settled().powered(40, 100, FALLING) == 50


@pytest.mark.parametrize(
    ("changes", "used", "forecast"),
    [
        ({}, 40, None),
        ({}, 50, FALLING),  # no fall so far
        ({}, 40, Forecast(38.5, 30.0)),  # a smaller fall is expected than `future_drop`
        ({}, 40, Forecast(30.0, 31.0)),  # a later rise is expected
        ({"least": 11}, 40, FALLING),
    ],
)
def test_forecast_rule_parks_nothing_otherwise(
    changes: dict[str, object], used: int, forecast: Forecast | None
) -> None:
    assert settled(**changes).powered(used, 100, forecast) == 60


def test_past_may_not_count() -> None:
    assert settled(past_drop=None).powered(49, 100, FALLING) == 59


def test_forecast_rule_wakes_at_need_and_then_keeps() -> None:
    rule = settled()
    assert rule.powered(70, 100, FALLING) == 80
    assert [rule.powered(40, 100, FALLING) for _ in range(2)] == [80, 80]
    rule.powered(60, 100, None)
    assert rule.powered(40, 100, FALLING) == 50
    assert rule.powered(95, 100) == 100


def observed(busy: int, idle: int, parked: int, waiting: int = 0) -> MachinesObserved:
    names = [f"n{number}" for number in range(busy + idle + parked)]
    return MachinesObserved(
        0.0, tuple(names[:busy]), tuple(names[busy : busy + idle]), tuple(names[busy + idle :]), waiting
    )


@pytest.mark.parametrize(
    ("seen", "commands"),
    [
        (observed(2, 3, 0), [ParkMachine("n4"), ParkMachine("n3")]),
        (observed(2, 1, 2), []),
        (observed(2, 0, 3, waiting=1), [WakeMachine("n2"), WakeMachine("n3")]),
        (observed(2, 0, 1, waiting=50), [WakeMachine("n2")]),
        (observed(0, 1, 0), []),
        (observed(0, 0, 0), []),
    ],
)
def test_controller_parks_idle_machines_and_wakes_for_waiting_jobs(
    seen: MachinesObserved, commands: list[object]
) -> None:
    assert ParkingController(PeakRule(PeakSettings(window=2, buffer=1))).handle(seen) == commands


def test_controller_never_parks_busy_machines() -> None:
    class Nothing:
        def powered(self, used: int, total: int, forecast: Forecast | None = None) -> int:
            return 0

    assert ParkingController(Nothing()).handle(observed(3, 1, 1)) == [ParkMachine("n3")]
