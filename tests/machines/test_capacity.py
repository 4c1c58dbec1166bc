"""Arrivals and departures of machines in a zone."""

from collections import Counter
from itertools import islice, pairwise
from random import Random
from statistics import mean

import pytest

from oddlot.machines import Alive, Always, Memoryless, Pools, Steps
from oddlot.machines.capacity import Capacity
from tests.transcripts import warns

MODELS = [
    Always(),
    Memoryless(100.0, 20.0),
    Pools(3, 50.0, 0.7, 10.0),
    Alive(Steps((0.0, 5.0, 9.0, 30.0), (3.0, 8.0, 0.0, 4.0), 40.0)),
]


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_machines_alternate_between_up_and_down_in_time_order(model: Capacity) -> None:
    moves = list(islice(model.moves(6, Random(1)), 5_000))
    assert moves == list(islice(model.moves(6, Random(1)), 5_000)), "the same chance, the same moves"
    assert all(a[0] <= b[0] for a, b in pairwise(moves))
    here = [False] * 6
    for _, machine, comes in moves:
        assert here[machine] is not comes
        here[machine] = comes


def test_on_demand_machines_never_leave() -> None:
    assert list(Always().moves(3, Random(0))) == [(0.0, 0, True), (0.0, 1, True), (0.0, 2, True)]


def test_memoryless_lifetimes_have_the_given_mean() -> None:
    came, stays = dict[int, float](), list[float]()
    for time, machine, comes in islice(Memoryless(100.0, 20.0).moves(50, Random(3)), 20_000):
        if comes:
            assert time == 0 or time - came[machine] == pytest.approx(20.0)
        else:
            stays.append(time - came[machine])
        came[machine] = time
    assert mean(stays) == pytest.approx(100.0, rel=0.03)


def test_machines_of_a_pool_leave_and_return_together() -> None:
    """Each of 3 pools has 4 of 12 machines. They are lost at once (with a share of 0.5: some) and return together."""
    for share, four in ((1.0, [4]), (0.5, [0, 1, 2, 3, 4])):
        lost = Counter[float]()
        went = dict[int, float]()
        for time, machine, comes in islice(Pools(3, 50.0, share, 10.0).moves(12, Random(5)), 3_000):
            lost[time] += not comes
            assert time == 0 or not comes or time - went[machine] == pytest.approx(10.0)
            went |= {} if comes else {machine: time}
            assert comes or machine % 3 in {0, 1, 2}
        sizes = {count for count in lost.values() if count}
        assert max(sizes) == 4
        assert sizes == {n for n in four if n}


def test_pools_are_limited_to_the_number_of_machines() -> None:
    def first(pools: int) -> list[tuple[float, int, bool]]:
        return list(islice(Pools(pools, 50.0, 0.5, 10.0).moves(3, Random(5)), 30))

    assert first(10**12) == first(3)


def test_trace_sets_the_count_and_the_seed_chooses_machines() -> None:
    steps = Steps((0.0, 10.0, 20.0), (2.0, 9.0, 3.0))
    here, over = set[int](), dict[float, int]()
    for time, machine, _ in Alive(steps).moves(6, Random(2)):
        here ^= {machine}
        over[time] = len(here)
    assert over == {0.0: 2, 10.0: 6, 20.0: 3}, "no more than are wanted"
    assert list(Alive(steps, of=9).moves(900, Random(2)))[-1][0] == 20.0
    scaled = Counter(time for time, _, comes in Alive(steps, of=9).moves(900, Random(2)) if comes)
    assert scaled == {0.0: 200, 10.0: 700}, "in proportion to what the trace's owners had asked for"
    goers = {tuple(m for _, m, comes in Alive(steps).moves(6, Random(s)) if not comes) for s in range(20)}
    assert len(goers) > 10, "not always the same ones"


@pytest.mark.parametrize(
    ("steps", "of", "count", "moves"),
    [
        (Steps((0.0,), (4.0,), 30.0), None, 4, 4),
        (Steps((0.0, 5.0), (10.0, 12.0), 30.0), None, 4, 4),
        (Steps((0.0, 5.0), (11.0, 12.0), 30.0), 100, 4, 0),
        (Steps((0.0,), (11.0,)), 16, 8, 6),
        (Steps((0.0,), (13.0,)), 16, 8, 6),
    ],
)
def test_constant_trace_ends(steps: Steps, of: int | None, count: int, moves: int) -> None:
    """Repeats of a trace without a change have no moves. 11/16 and 13/16 of 8 machines are both rounded to 6."""
    assert len(list(Alive(steps, of).moves(count, Random(0)))) == moves


def test_single_instance_trace_for_several_machines_warns() -> None:
    """With `of`, for one machine, or with a trace that counts two machines, there is no warning."""
    one, two = Steps((0.0, 5.0), (1.0, 0.0)), Steps((0.0, 5.0), (2.0, 0.0))
    for quiet, count in ((Alive(one, of=1), 8), (Alive(one), 1), (Alive(two), 8)):
        assert list(quiet.moves(count, Random(0)))
    with warns("trace_of_one", machines=8):
        assert len(list(Alive(one).moves(8, Random(0)))) == 2
