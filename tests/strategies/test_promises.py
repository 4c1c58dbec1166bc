"""The shipped strategies, and toys with the words that they do not use, keep their promises in random histories."""

from collections.abc import Callable

import pytest
from hypothesis import settings

from oddlot.core.rules import SGD
from oddlot.core.strategy import Strategy
from oddlot.core.switching import ByError, ByGradients, ByPlateau
from oddlot.strategies import (
    VCASGD,
    AdaptiveK,
    AdaptiveLoad,
    Asynchronous,
    BackupTasks,
    Deadline,
    Downpour,
    ElasticAveraging,
    FastestK,
    FederatedAveraging,
    LocalSGD,
    ProportionalLoad,
    Quorum,
    Synchronous,
)
from oddlot.testing import check_strategy
from tests.toys import Backups, Timed

MAKERS: list[Callable[[], Strategy]] = [
    Synchronous,
    lambda: Synchronous(samples=3),
    lambda: FastestK(k=1),
    lambda: FastestK(k=2, samples=5),
    lambda: FastestK(k=4),
    lambda: AdaptiveK(switch=ByGradients(window=1, threshold=0)),
    lambda: AdaptiveK(k=2, rise=2, most=3, switch=ByGradients(window=2, threshold=1, burn_in=2), samples=3),
    lambda: AdaptiveK(times=((0.5, 2), (2.0, 3))),
    AdaptiveLoad,
    lambda: AdaptiveLoad(least=3),
    lambda: AdaptiveLoad(((1, 2, 1.0), (2, 2, 1.5), (3, 5, 4.0)), ByGradients(1, 0, 0)),
    lambda: AdaptiveLoad(((1, 2, 1.0), (2, 7, 4.0)), ByError(0.5), least=3),
    lambda: AdaptiveLoad(switch=ByPlateau(patience=1), measuring=0.3),
    Asynchronous,
    lambda: Asynchronous(samples=3, damping=0.5, max_staleness=0),
    lambda: Asynchronous(samples=5, damping=1.0, max_staleness=2),
    lambda: LocalSGD(steps=1),
    lambda: LocalSGD(steps=3, server=SGD(lr=0.7, momentum=0.9, nesterov=True)),
    FederatedAveraging,
    lambda: FederatedAveraging(clients=3),
    VCASGD,
    lambda: VCASGD(alpha=0.7, newest=True, deadline_seconds=5, damping=0.5),
    lambda: ElasticAveraging(steps=2),
    lambda: ElasticAveraging(steps=1, rate=0.5),
    lambda: Downpour(steps=2),
    lambda: Quorum(LocalSGD(server=SGD(lr=0.7, momentum=0.9, nesterov=True))),
    lambda: Quorum(ProportionalLoad(Synchronous(6)), quorum=0.3, grace=0.0),
    lambda: Quorum(Deadline(LocalSGD(steps=3), 0.5)),
    lambda: Quorum(LocalSGD(steps=1), quorum=1.0),
    lambda: Quorum(LocalSGD(steps=2), quorum=0.1),
    lambda: BackupTasks(Synchronous(), slow=1.0),
    lambda: BackupTasks(VCASGD(), slow=1.0),
    lambda: BackupTasks(Asynchronous(), slow=1.0),
    lambda: BackupTasks(ElasticAveraging(steps=1), slow=1.0),
    lambda: Deadline(LocalSGD(steps=3), 0.5),
    lambda: Deadline(FastestK(k=2, samples=9), 0.1),
    lambda: ProportionalLoad(Synchronous()),
    lambda: BackupTasks(Deadline(ProportionalLoad(Quorum(LocalSGD(steps=2))), 0.3), slow=2.0),
    Backups,
    Timed,
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: repr(make()))
def test_strategy_keeps_its_promises(make: Callable[[], Strategy]) -> None:
    check_strategy(make, examples=settings.default.max_examples)  # type: ignore[union-attr]


def test_many_tasks_in_flight() -> None:
    check_strategy(lambda: FastestK(k=3, samples=2), in_flight=(4,), examples=settings.default.max_examples)  # type: ignore[union-attr]
