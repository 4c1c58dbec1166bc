"""Links, lifetimes and prices of a machine."""

from random import Random

import pytest

from oddlot.machines.delay_models import Deterministic, Trace
from oddlot.machines.machine import Lifetime, Link, Machine


def test_link_time_is_latency_plus_bits_over_bandwidth() -> None:
    link = Link(megabits_per_second=100, latency_milliseconds=20)
    assert link.seconds(0) == pytest.approx(0.02)
    assert link.seconds(12_500_000) == pytest.approx(1.02)  # 100 megabits


def test_default_link_takes_no_time() -> None:
    assert Link().seconds(10**12) == 0


def test_lifetimes_are_the_mean_times_the_model() -> None:
    assert Lifetime(60.0, Deterministic()).start(Random(0))() == 60.0
    lifetimes = Lifetime(60.0, Trace((0.5, 2.0))).start(Random(0))
    assert sorted([lifetimes(), lifetimes()]) == [30.0, 120.0]


def test_zero_price_and_zero_return_time_are_allowed() -> None:
    machine = Machine("a-b_1", dollars_per_hour=0, lifetime=Lifetime(9), seconds_to_return=0)
    assert machine.seconds_to_return == 0
