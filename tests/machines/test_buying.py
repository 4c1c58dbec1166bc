"""Buying policies decide by the situation alone, and the optimum by hindsight is a lower bound."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.machines import Alive, Buying, Fleet, Machine, Memoryless, Offer, Steps, Zone
from oddlot.machines.buying import POLICIES, Purchase, Situation
from oddlot.machines.least_cost import least_dollars
from tests.transcripts import raises

NOW = Situation(
    elapsed_seconds=0.0,
    deadline_seconds=1_000.0,
    seconds_needed=400.0,
    share_done=0.0,
    changeover_seconds=10.0,
    count=8,
)
"""The start of a run with 600 s of slack and no machine."""


@pytest.mark.parametrize(
    ("policy", "changes", "bought", "takes_spot"),
    [
        # Slack, no machine: only uniform progress buys, if it is behind its pace.
        ("fill_in", {}, 0, True),
        ("greedy", {}, 0, True),
        ("uniform_progress", {}, 0, True),
        ("uniform_progress", {"elapsed_seconds": 10.0}, 8, True),
        ("uniform_progress", {"elapsed_seconds": 10.0, "spot_ready": 3, "spot": 5}, 3, True),
        # Hysteresis: on-demand machines stay until the run is 2 changeovers ahead.
        ("uniform_progress", {"elapsed_seconds": 10.0, "share_done": 0.011}, 0, True),
        ("uniform_progress", {"elapsed_seconds": 10.0, "share_done": 0.011, "on_demand": 2}, 8, True),
        ("uniform_progress", {"elapsed_seconds": 10.0, "share_done": 0.031, "on_demand": 2}, 0, True),
        # 55 s of slack.
        ("fill_in", {"seconds_needed": 945.0}, 0, True),
        ("fill_in", {"seconds_needed": 945.0, "on_demand": 1, "spot_ready": 5, "spot": 5}, 3, True),
        # 50 s of slack: on-demand machines fill in until the starting spot machines are ready.
        ("fill_in", {"seconds_needed": 950.0}, 8, True),
        ("fill_in", {"seconds_needed": 950.0, "spot_ready": 3, "spot": 8, "on_demand": 5}, 5, True),
        ("fill_in", {"seconds_needed": 950.0, "spot_ready": 3, "spot": 7, "on_demand": 1}, 1, True),
        ("fill_in", {"seconds_needed": 950.0, "spot_ready": 3, "spot": 8}, 0, True),
        ("fill_in", {"seconds_needed": 950.0, "spot_ready": 8, "spot": 8, "on_demand": 5}, 0, True),
        ("greedy", {"seconds_needed": 950.0}, 0, True),
        # 12 s of slack: no spot machine is ordered, and running ones stay.
        ("fill_in", {"seconds_needed": 988.0, "spot_ready": 3, "spot": 3}, 5, False),
        ("fill_in", {"seconds_needed": 985.0, "spot_ready": 3, "spot": 3}, 5, True),
        ("fill_in", {"seconds_needed": 985.0, "spot_ready": 3, "spot": 3, "takes_spot": False}, 5, False),
        ("fill_in", {"seconds_needed": 900.0, "spot_ready": 3, "spot": 3, "takes_spot": False}, 0, True),
        ("greedy", {"seconds_needed": 980.0, "spot_ready": 3, "spot": 3}, 5, False),
        ("greedy", {"seconds_needed": 100.0, "takes_spot": False}, 8, False),
        ("uniform_progress", {"seconds_needed": 980.0, "spot": 2}, 6, False),
        # After the deadline.
        *((policy, {"elapsed_seconds": 2_000.0}, 8, False) for policy in POLICIES),
    ],
)
def test_policy_buys_by_slack(policy: str, changes: dict[str, Any], bought: int, takes_spot: bool) -> None:
    assert POLICIES[policy].decide(replace(NOW, **changes)) == Purchase(bought, takes_spot)


def test_purchases_are_within_the_zone() -> None:
    for policy, needed, spot, ready in product(POLICIES, range(0, 1_200, 100), (0, 4, 8), (0, 4)):
        now = replace(
            NOW, seconds_needed=needed, spot=spot, spot_ready=min(spot, ready), elapsed_seconds=90.0
        )
        assert 0 <= POLICIES[policy].decide(now).on_demand <= 8


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"deadline_hours": 0.0}, "deadline_hours"),
        ({"deadline_hours": -1.0}, "deadline_hours"),
        ({"deadline_hours": "6"}, "deadline_hours"),
        ({"policy": "cheapest"}, "policy"),
        ({"epochs": 0}, "epochs"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], name: str) -> None:
    with raises(UsageError, "invalid_value", name=name, given=settings[name]):
        Buying(**{"deadline_hours": 1.0, **settings})


def test_fleet_without_a_spot_zone_is_rejected() -> None:
    with raises(UsageError, "no_spot_zone"):
        Fleet([Machine("m")], buying=Buying(1.0))


def zone(capacity: Any, prices: Steps, start: float = 0.0, count: int = 1) -> Zone:
    return Zone("z", Offer("o", 1.0, prices, seconds_to_start=start), count, Machine("m"), capacity)


def test_optimum_takes_the_cheapest_hours() -> None:
    """Spot machines are available in the first and third hour, at 0.5 and 0.2 dollars. On demand costs 1 dollar."""
    hours = Alive(Steps((0.0, 3_600.0, 7_200.0, 10_800.0), (1.0, 0.0, 1.0, 0.0)))
    one = zone(hours, Steps((0.0, 7_200.0), (0.5, 0.2)))
    dollars = {1.0: 0.2, 1.5: 0.2 + 0.25, 2.0: 0.7, 2.5: 0.7 + 0.5}
    assert {work: least_dollars(one, work, 3.0) for work in dollars} == pytest.approx(dollars)
    assert least_dollars(one, 2.0, 2.5) == pytest.approx(0.1 + 0.5 + 0.5), "only half an hour is cheap"
    slow = replace(one, offer=replace(one.offer, seconds_to_start=1_800.0))
    assert least_dollars(slow, 0.5, 3.0) == pytest.approx(0.2), "an hour is paid for half an hour of work"
    dear = replace(one, offer=replace(one.offer, dollars_per_hour=0.1))
    assert least_dollars(dear, 1.0, 3.0) == pytest.approx(0.1)


def test_optimum_ends_with_an_endless_capacity() -> None:
    falls = zone(Memoryless(600.0, 60.0), Steps((0.0, 60.0), (0.5, 0.4), 120.0), count=4)
    assert least_dollars(falls, 4.0, 2.0) == pytest.approx(4 * 0.4), "at the lowest price of each machine"
