"""The benchmark of stragglers (`benchmarks.stragglers`): measures, closed forms and policies."""

from dataclasses import is_dataclass
from math import inf

import pytest
import torch

from benchmarks.report import Size
from benchmarks.stragglers import __main__, asynchronous, goodput, joint, least_squares, networks, real
from benchmarks.stragglers.least_squares import DRAWN
from benchmarks.stragglers.merged import merged_a_second
from oddlot import FastestK, LocalSGD, Machine, Quorum, Synchronous
from oddlot.core.commands import Start
from oddlot.core.events import Ticked
from oddlot.core.records import Record
from oddlot.core.sample_spans import Span
from oddlot.core.tasks import Task
from oddlot.data.batches import order
from oddlot.machines import Link
from tests.strategies.slow_fleets import BATCH, PACE, machines, ran


def test_lock_step_goodput_matches_simulated_failures() -> None:
    """Eight workers fail every 1 or 10 hours each, for 100,000 hours."""
    for between in (goodput.HOUR, 10 * goodput.HOUR):
        drawn = goodput.drawn_lock_step(8, between, 1e5 * goodput.HOUR)
        assert drawn == pytest.approx(goodput.lock_step(8, between), rel=0.02)
    assert goodput.lock_step(8, goodput.between_at(8, 0.27)) == pytest.approx(0.27)


def test_least_squares_errors_match_the_paper() -> None:
    """Final errors of rounds of 10, 20, 30 and 40 workers, and the constant for rounds of one row, match the paper."""
    floors = [least_squares.floor(5e-4, k) for k in (10, 20, 30, 40)]
    assert floors == pytest.approx([7.1e-3, 4.4e-3, 2.9e-3, 1.8e-3], rel=0.02)
    assert least_squares.a_of(2e-4) == pytest.approx(0.19, rel=0.02)


def test_least_squares_workers_compute_their_own_rows() -> None:
    """A round of all workers is an exact gradient, even if samples are leased again or a task spans two epochs."""
    held = least_squares.Held(seed=3)

    def begins(worker: str, *spans: Span) -> Record:
        return Record(0.0, Ticked(), (Start(Task("t", worker, spans, 0)),))

    def rows_of(*spans: Span) -> list[int]:
        return [
            int(held.rows[place])
            for one in spans
            for place in order(3, one.epoch, DRAWN)[one.start : one.stop]
        ]

    first, last = Span(0, 0, 40), (Span(0, DRAWN - 15, DRAWN), Span(1, 0, 25))
    held(begins("w7", first))
    assert rows_of(first) == [*range(280, 320)]
    held(begins("w49", *last))
    held(begins("w0", first))
    assert rows_of(first) == [*range(40)]
    assert rows_of(*last) == [*range(1_960, 2_000)]
    start = torch.zeros(least_squares.FEATURES, dtype=torch.float64)
    fleet = [Machine(f"w{number}", 0.01 + 0.001 * number) for number in range(50)]
    run, _ = least_squares.trained(Synchronous(), fleet, 1e-4, start, 3, "versions>=8", least_squares.Held)
    curvature, best = least_squares.problem().curvature, least_squares.problem().best
    exact = start
    for _ in range(8):
        exact = exact - 1e-4 * curvature @ (exact - best)
    assert run.history[-1]["error"] == pytest.approx(float((exact - best).norm()), rel=1e-9)


def test_merged_a_second_counts_only_merged_work() -> None:
    """Three equal machines are always busy. Rounds that wait for three never use a fourth machine, ten times as
    slow."""
    run = ran(Synchronous(), machines(3), torch.zeros(3_000), "epochs>=1")
    assert merged_a_second(run) == pytest.approx(3 / PACE)
    far = Link(latency_milliseconds=500)
    run = ran(Synchronous(), machines(3, link=far), torch.zeros(3_000), "epochs>=1")
    assert merged_a_second(run) == pytest.approx(3 * BATCH / (BATCH * PACE + 1.0), rel=0.01)
    run = ran(FastestK(k=3), machines(4, 10.0), torch.zeros(3_000), "seconds>=90")
    assert merged_a_second(run) == pytest.approx(3 / PACE)
    run = ran(Quorum(LocalSGD(steps=2), grace=0.0), machines(4, 10.0), torch.zeros(9_000), "seconds>=250")
    assert merged_a_second(run) == pytest.approx(3.1 / PACE, rel=0.02)


def test_policies_of_every_part_can_be_created() -> None:
    loads = {name: sorted({row[1] for row in joint.strategy(1.0, name).table}) for name in joint.BY_ERROR}  # type: ignore[attr-defined]
    assert loads == {"k alone": [40], "k and load": list(joint.LOADS), "k and load, fitted": []}
    made = [joint.strategy(1.0, name) for name in joint.POLICIES]
    assert len(set(map(repr, made))) == len(made), "each is another one"
    rivals = {name: setting.make for name, setting in asynchronous.SETTINGS.items()}
    for policies in (rivals, networks.POLICIES, real.POLICIES):
        made = [make() for make in policies.values()]
        assert all(map(is_dataclass, made))
    assert all(is_dataclass(make(8)) for make in goodput.POLICIES.values())
    least_squares = {"theory", "floors", "asynchronous", "joint", "tails", "paths"}
    assert {*least_squares, "goodput", "networks", "real"} == __main__.PARTS.keys()


def test_asynchronous_baseline_uses_its_best_learning_rate() -> None:
    diverges, best, slow, *_ = asynchronous.UNDAMPED
    found = {asynchronous.OURS: [1.0, 3.0], diverges: [inf, inf], best: [2.0, 4.0], slow: [5.0, 5.0]}
    figures = asynchronous._figures(found)
    assert figures == {"asynchronous_error": [2.0, 4.0], "adaptive_k_error_over_asynchronous": [0.5, 0.75]}


@pytest.mark.parametrize(("size", "ratios"), [(Size.QUICK, None), (Size.FULL, [1.0]), (Size.FULL, None)])
def test_worst_ratio_needs_all_ratios(
    size: Size, ratios: list[float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without all ratios, --save must not overwrite complete results."""
    ends = dict.fromkeys(joint.MEASURES, 1.0)
    monkeypatch.setattr(joint, "in_processes", lambda run, asked: [ends] * len(asked))
    is_complete = size is Size.FULL and ratios is None
    assert joint.measure(size, ratios).keys() == joint.AT_ONE.keys() | (
        joint.WORST.keys() if is_complete else set()
    )
