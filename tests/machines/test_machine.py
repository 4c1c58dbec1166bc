"""What a machine is made of, and what is refused."""

from collections.abc import Callable
from math import inf, nan
from random import Random

import pytest

from oddlot.core.errors import UsageError
from oddlot.machines.delays import Deterministic, Trace
from oddlot.machines.machine import Lifetime, Link, Machine


def test_a_link_takes_its_latency_and_a_time_for_the_bits() -> None:
    link = Link(megabits_per_second=100, latency_milliseconds=20)
    assert link.seconds(0) == pytest.approx(0.02)
    assert link.seconds(12_500_000) == pytest.approx(1.02)  # 100 megabits


def test_without_a_link_nothing_takes_time() -> None:
    assert Link().seconds(10**12) == 0


def test_lifetimes_are_the_mean_times_the_model() -> None:
    assert Lifetime(60.0, Deterministic()).start(Random(0))() == 60.0
    lifetimes = Lifetime(60.0, Trace((0.5, 2.0))).start(Random(0))
    assert sorted([lifetimes(), lifetimes()]) == [30.0, 120.0]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Machine("w:1"), r"name = 'w:1' must be of letters"),
        (lambda: Machine("w1.2"), r"name = 'w1.2' must be of letters"),
        (lambda: Machine(3), "name = 3 must be a text"),  # type: ignore[arg-type]
        (lambda: Machine("a", seconds_to_return="5"), "'5' must be a number or None"),  # type: ignore[arg-type]
        (lambda: Machine("a", delay=3), "delay = 3 must be Deterministic"),  # type: ignore[arg-type]
        (lambda: Machine("a", link=100), r"link = 100 must be Link\(...\)"),  # type: ignore[arg-type]
        (lambda: Machine(""), r"name = '' must be of letters"),
        (lambda: Machine("a", seconds_per_sample=0), r"seconds_per_sample = 0 must be finite and above 0"),
        (lambda: Machine("a", seconds_per_sample=nan), r"seconds_per_sample = nan"),
        (lambda: Machine("a", dollars_per_hour=-1), r"dollars_per_hour = -1 must be finite and not negative"),
        (lambda: Machine("a", joins_at_seconds=inf), r"joins_at_seconds = inf"),
        (lambda: Machine("a", lifetime=Lifetime(9), seconds_to_return=-5), r"seconds_to_return = -5"),
        (lambda: Lifetime(0), r"mean_seconds = 0 must be finite and above 0"),
        (lambda: Link(megabits_per_second=0), r"megabits_per_second = 0 must be above 0"),
        (lambda: Link(megabits_per_second=nan), r"megabits_per_second = nan"),
        (lambda: Link(latency_milliseconds=-1), r"latency_milliseconds = -1"),
    ],
)
def test_an_impossible_machine_is_refused_with_its_value(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        make()


def test_what_is_free_or_immediate_is_allowed() -> None:
    machine = Machine("a-b_1", dollars_per_hour=0, lifetime=Lifetime(9), seconds_to_return=0)
    assert machine.seconds_to_return == 0
