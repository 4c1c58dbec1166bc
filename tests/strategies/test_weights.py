"""Shares of updates in a merge."""

from collections.abc import Iterator

import pytest

from oddlot.core.commands import Step
from oddlot.core.optimizers import SGD
from oddlot.core.sample_spans import samples_in
from oddlot.core.strategy import Strategy, shares_by_weight
from oddlot.core.support.errors import UsageError
from oddlot.run.config import RunConfig
from oddlot.run.recipe import Recipe
from oddlot.strategies import Asynchronous, Downpour, FastestK, LocalSGD, Synchronous
from oddlot.testing.run_scenario import Data, ScenarioRun
from tests.fits import a_job, fleet
from tests.transcripts import raises


def steps(strategy: Strategy, lines: str, size: int = 1000) -> Iterator[dict[str, float]]:
    """Yield the shares of every step of the strategy during the given events."""
    play = ScenarioRun(Data(size).conductor(strategy))
    for line in lines.split("/"):
        for record in play.do(line):
            yield from (dict(action.shares) for action in record.actions if isinstance(action, Step))


@pytest.mark.parametrize("strategy", [Synchronous(samples=8), FastestK(k=3, samples=8), LocalSGD(steps=1)])
def test_round_weighs_updates_by_their_samples(strategy: Strategy) -> None:
    lines = "join a/join b/join c/finish a samples=2/finish b samples=6/finish c"
    assert list(steps(strategy, lines)) == [{"a:1": 2 / 16, "b:2": 6 / 16, "c:3": 8 / 16}]


@pytest.mark.parametrize("strategy", [Synchronous(samples=8), FastestK(k=2, samples=8), LocalSGD(steps=1)])
def test_smaller_last_task_of_an_epoch_has_a_lower_share(strategy: Strategy) -> None:
    assert list(steps(strategy, "join a/join b/finish a/finish b", size=12)) == [
        {"a:1": 8 / 12, "b:2": 4 / 12}
    ]


@pytest.mark.parametrize(("damping", "share"), [(0.0, 1.0), (0.5, 3**-0.5), (1.0, 1 / 3), (2.0, 1 / 9)])
def test_damping_lowers_the_share_of_stale_updates(damping: float, share: float) -> None:
    lines = "join a/join b/finish a/finish a/finish b"
    assert list(steps(Asynchronous(samples=8, damping=damping), lines))[-1]["b:2"] == pytest.approx(share)


def test_partial_update_counts_in_proportion() -> None:
    assert list(steps(Asynchronous(samples=8), "join a/finish a samples=2")) == [{"a:1": 0.25}]


@pytest.mark.parametrize(("limit", "merged"), [(0, False), (1, False), (2, True), (None, True)])
def test_updates_above_max_staleness_are_dropped(limit: int | None, merged: bool) -> None:
    lines = "join a/join b/finish a/finish a/finish b"
    seen = [update for shares in steps(Asynchronous(max_staleness=limit), lines) for update in shares]
    assert ("b:2" in seen) is merged


@pytest.mark.parametrize(
    ("strategy", "kind", "samples"),
    [
        (Synchronous(), "gradient", 8),
        (Synchronous(samples=3), "gradient", 3),
        (FastestK(), "gradient", 8),
        (FastestK(samples=3), "gradient", 3),
        (Asynchronous(), "gradient", 8),
        (Asynchronous(samples=3), "gradient", 3),
        (LocalSGD(steps=5), "delta", 40),
    ],
    ids=repr,
)
def test_tasks_have_the_kind_and_size_of_their_strategy(strategy: Strategy, kind: str, samples: int) -> None:
    play = ScenarioRun(Data(1000, batch=8).conductor(strategy))
    list(play.do("join a"))
    assert [(task.kind, samples_in(task.spans)) for task in play.tasks.values()] == [(kind, samples)]


def test_shares_sum_to_one() -> None:
    assert shares_by_weight({"a": 1, "b": 3}) == {"a": 0.25, "b": 0.75}


def test_strategies_set_server_optimizer_and_required_workers() -> None:
    how = RunConfig(until="epochs>=1")
    for strategy in (LocalSGD(), Downpour()):
        assert Recipe(a_job(), strategy, fleet(), how).rule == SGD(lr=1.0)
    assert Recipe(a_job(), Synchronous(), fleet(), how).rule == a_job().optimizer
    FastestK(k=5).validate(5, [])
    with raises(UsageError, "too_few_workers", k=5, workers=4):
        FastestK(k=5).validate(4, [])
