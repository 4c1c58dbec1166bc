"""Trials of the planner: the metrics, times and costs of simulated runs, limits, divergence and continuation."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from oddlot import SGD, VCASGD, Asynchronous, Job, LocalSGD, Machine, Simulated, Strategy, Synchronous, fit
from oddlot.codecs import Half
from oddlot.core.optimizers import Optimizer
from oddlot.history.goals import Term
from oddlot.machines import Alive, Fleet, Hub, Lognormal, Offer, Steps, Zone
from oddlot.planner.timeline import Timeline
from oddlot.planner.trial import Bench, Trial
from oddlot.run.config import RunConfig
from oddlot.strategies import Groups
from tests.fits import a_job, rows

NEVER = Term("loss", "<=", -1.0)
SEED = 3
STRAGGLERS = Fleet([Machine(f"m{number}", 0.01, Lognormal(0.8)) for number in range(6)], Hub(0.001))
OFFER = Offer("big", dollars_per_hour=3600.0, spot_dollars_per_hour=Steps((0.0, 2.0), (900.0, 1800.0)))
CAPACITY = Alive(Steps((0.0, 1.05, 3.0), (3.0, 1.0, 3.0)))
SPOT = Fleet([Zone("east", OFFER, 3, Machine("any", 0.05), CAPACITY)], Hub(dollars_per_hour=36.0))
THREE_GROUPS = Groups(Synchronous(), groups=3)


def settings(**changes: Any) -> dict[str, Any]:
    return {"seed": SEED, "evaluate_every": "5 versions", **changes}


def measurable(**changes: Any) -> Job:
    """Return a small job with an evaluation set."""
    return a_job(**{"count": 96, "eval_data": rows(40), **changes})


@contextmanager
def trying(
    job: Job, strategy: Strategy, fleet: Fleet, goal: Term = NEVER, codec: Any = None, **options: Any
) -> Iterator[Trial]:
    """Yield a trial of a job on a fleet."""
    timeline = Timeline.of(job, strategy, fleet, RunConfig.of(settings(**options, codec=codec)))
    optimizer = strategy.traits(job.batch_size).server_optimizer or job.optimizer
    assert isinstance(optimizer, Optimizer)
    trial = Trial(Bench(job, SEED), timeline, optimizer, goal, codec)
    yield trial
    trial.close()
    timeline.close()


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


def normed_by_batch() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 2))


def halved(epoch: float) -> float:
    return float(0.5**epoch)


CASES: dict[str, tuple[Job, Strategy, Fleet, Mapping[str, Any], float]] = {
    "groups": (measurable(), THREE_GROUPS, STRAGGLERS, {}, 1e-5),
    "one group": (measurable(max_grad_norm=0.5), Groups(Synchronous(), groups=1), STRAGGLERS, {}, 1e-6),
    "asynchronous": (measurable(optimizer=SGD(0.05)), Asynchronous(damping=1.0), STRAGGLERS, {}, 1e-6),
    "local steps": (measurable(), Groups(LocalSGD(steps=2), groups=2), STRAGGLERS, {}, 1e-6),
    "shards": (measurable(), VCASGD(), STRAGGLERS, {"shards": 12}, 1e-6),
    "buffers": (measurable(model=normed), THREE_GROUPS, STRAGGLERS, {}, 1e-6),
    "batch statistics": (measurable(model=normed_by_batch), THREE_GROUPS, STRAGGLERS, {}, 1e-6),
    "codec": (measurable(), THREE_GROUPS, STRAGGLERS, {"codec": Half()}, 2e-2),
    "schedule": (measurable(lr_schedule=halved), THREE_GROUPS, STRAGGLERS, {}, 1e-5),
    "spot": (measurable(), Synchronous(), SPOT, {}, 1e-5),
}


@pytest.mark.parametrize("case", CASES)
def test_trial_has_the_metrics_times_and_costs_of_the_run(case: str) -> None:
    job, strategy, fleet, options, tolerance = CASES[case]
    run = fit(
        job, strategy, Simulated.of(fleet, SEED), until="versions>=60", quiet=True, **settings(**options)
    )
    with trying(job, strategy, fleet, **options) as trial:
        trial.advance(run.summary["seconds"])
        found = [
            {"seconds": one.seconds, "versions": one.version, "epochs": one.epochs, "dollars": one.dollars}
            | one.metrics
            for one in trial.history
        ]
    expected = run.history[: len(found)]
    assert len(found) >= len(run.history) - 1 > 5
    for mine, theirs in zip(found, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=tolerance)


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="sum")


@pytest.mark.parametrize(
    ("changes", "joins"),
    [({}, True), ({"loss": summed}, False), ({"model": normed}, False)],
    ids=["mean", "sum", "norm"],
)
def test_updates_are_joined_only_if_the_gradient_is_the_same(changes: dict[str, Any], joins: bool) -> None:
    with trying(measurable(**changes), THREE_GROUPS, STRAGGLERS) as trial:
        trial.advance(0.5)
        assert bool(trial.bench.can_join) is joins


@pytest.mark.parametrize("limit", ["seconds", "dollars", "epochs"])
def test_trial_stops_before_its_limit(limit: str) -> None:
    with trying(measurable(), Synchronous(), SPOT) as trial:
        limits = {"seconds": 20.0, limit: 2.0}
        trial.advance(**limits)
        merge = trial.timeline.merge(trial.version)
        following = trial.timeline.merge(trial.version + 1)
        assert getattr(merge, limit) <= 2.0 < getattr(following, limit)
        trial.advance(**limits)
        assert trial.version == trial.timeline.merges.index(merge) + 1, (
            "the limit is of the run, not of a call"
        )


def test_trial_ends_at_its_goal() -> None:
    with trying(measurable(), THREE_GROUPS, STRAGGLERS, Term("loss", "<=", 0.3)) as trial:
        trial.advance(20.0)
        assert trial.reached is trial.history[-1]
        assert [one.metrics["loss"] <= 0.3 for one in trial.history] == [False] * (len(trial.history) - 1) + [
            True
        ]
        assert trial.version == trial.reached.version
        assert 0 < trial.score() < 0.6


def test_trial_ends_when_it_diverges() -> None:
    wild = measurable(model=lambda: nn.Linear(2, 2), optimizer=SGD(1e4))
    with trying(wild, THREE_GROUPS, STRAGGLERS) as trial:
        trial.advance(20.0)
        assert trial.diverged
        assert trial.reached is None
        assert trial.score() == inf


def test_trial_continues_from_another() -> None:
    """The state of the optimizer is kept: two halves on one timeline are the same as one trial."""
    with (
        trying(measurable(), THREE_GROUPS, STRAGGLERS) as complete,
        trying(measurable(), THREE_GROUPS, STRAGGLERS) as half,
    ):
        complete.advance(0.8)
        half.advance(0.4)
        optimizer, other = SGD(0.1, momentum=0.9), SGD(0.1)
        kept = Trial(half.bench, half.timeline, optimizer, NEVER, after=half)
        new = Trial(half.bench, half.timeline, other, NEVER, after=half)
        assert (kept.version, kept.seconds, kept.losses) == (half.version, half.seconds, half.losses)
        momentum = [*half.store.optimizer_tensors().values()]
        assert all(map(torch.equal, kept.store.optimizer_tensors().values(), momentum))
        kept.advance(0.8)
        assert kept.version == complete.version
        # The updates under way at the change count as computed from its version.
        assert kept.evaluate()["loss"] == pytest.approx(complete.evaluate()["loss"], rel=0.1)
        new.advance(0.8)
        assert new.evaluate()["loss"] != pytest.approx(complete.evaluate()["loss"], rel=1e-3)
        kept.close()
        new.close()


def test_trial_returns_the_memory_of_old_versions() -> None:
    made = 0
    job = measurable()
    with trying(job, Groups(Synchronous(), groups=6), STRAGGLERS) as first:
        bench = first.bench
        make = bench.pool._make

        def counted() -> Any:
            nonlocal made
            made += 1
            return make()

        bench.pool._make = counted
        first.advance(2.0)
        assert first.version > 100
        at_first = made
        assert at_first < 50
        for _ in range(3):
            later = Trial(bench, first.timeline, SGD(0.05), NEVER, after=first)
            later.advance(4.0)
            later.close()
        assert made <= 2 * at_first
