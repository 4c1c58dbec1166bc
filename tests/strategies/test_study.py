"""What the study of stragglers (`benchmarks.stragglers`) reckons by: its clock, its closed forms, its policies."""

from dataclasses import is_dataclass

import pytest
import torch

from benchmarks.stragglers import __main__, asynchronous, goodput, joint, least_squares, networks, real
from benchmarks.stragglers.merged import merged_a_second
from oddlot import FastestK, Link, LocalSGD, Quorum, Synchronous
from tests.strategies.slow_fleets import BATCH, PACE, machines, ran


def test_lock_step_keeps_what_is_drawn() -> None:
    """Eight learners, each of which fails every hour or every ten, over a hundred thousand hours."""
    for between in (goodput.HOUR, 10 * goodput.HOUR):
        drawn = goodput.drawn_lock_step(8, between, 1e5 * goodput.HOUR)
        assert drawn == pytest.approx(goodput.lock_step(8, between), rel=0.02)
    assert goodput.lock_step(8, goodput.between_at(8, 0.27)) == pytest.approx(0.27)


def test_the_least_squares_have_the_paper_s_constants() -> None:
    """Distances at which rounds of 400 rows end, and a loss of rounds of one."""
    assert least_squares.floor(5e-4, 400) == pytest.approx(7.9e-3, rel=0.01)
    assert least_squares.a_of(2e-4) == pytest.approx(0.19, rel=0.02)


def test_work_counts_where_it_was_computed_and_only_if_it_was_merged() -> None:
    """Three alike work all the time; of a fourth, ten times as slow, rounds of the first three take nothing."""
    run = ran(Synchronous(), machines(3), torch.zeros(3_000), "epochs>=1")
    assert merged_a_second(run) == pytest.approx(3 / PACE)
    far = Link(latency_milliseconds=500)
    run = ran(Synchronous(), machines(3, link=far), torch.zeros(3_000), "epochs>=1")
    assert merged_a_second(run) == pytest.approx(3 * BATCH / (BATCH * PACE + 1.0), rel=0.01)
    run = ran(FastestK(k=3), machines(4, 10.0), torch.zeros(3_000), "seconds>=90")
    assert merged_a_second(run) == pytest.approx(3 / PACE)
    run = ran(Quorum(LocalSGD(steps=2), grace=0.0), machines(4, 10.0), torch.zeros(9_000), "seconds>=250")
    assert merged_a_second(run) == pytest.approx(3.1 / PACE, rel=0.02)


def test_every_policy_of_every_part_can_be_made() -> None:
    loads = {name: sorted({row[1] for row in joint.strategy(1.0, name).table}) for name in joint.BY_ERROR}  # type: ignore[attr-defined]
    assert loads == {"k alone": [40], "k and load": list(joint.LOADS), "k and load, fitted": []}
    made = [joint.strategy(1.0, name) for name in joint.POLICIES]
    assert len(set(map(repr, made))) == len(made), "each is another one"
    for policies in (asynchronous.POLICIES, networks.POLICIES, real.POLICIES):
        made = [make() for make in policies.values()]
        assert all(map(is_dataclass, made))
    assert all(is_dataclass(make(8)) for make in goodput.POLICIES.values())
    least_squares = {"theory", "floors", "asynchronous", "joint", "tails", "paths"}
    assert {*least_squares, "goodput", "networks", "real"} == __main__.PARTS.keys()
