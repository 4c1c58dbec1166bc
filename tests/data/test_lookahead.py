"""Predictions of a worker's next tasks, and requests of their minibatches ahead of time."""

from collections.abc import Collection
from itertools import islice
from typing import Any

import pytest

from oddlot.core.sample_ledger import SampleLedger
from oddlot.core.sample_spans import Span
from oddlot.core.tasks import Task
from oddlot.data.load_ahead import LoadAhead
from oddlot.data.lookahead import Lookahead
from oddlot.data.sample_order import Minibatch, minibatches, sample_order


def leased(size: int, samples: int, workers: int, rounds: int) -> list[Span]:
    """Return the tasks of the first of several workers with equal tasks."""
    ledger = SampleLedger(size)
    spans = [ledger.lease(f"w1:{n}", samples, "w1") for n in range(rounds * workers)]
    return [span for (span,) in spans[::workers]]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(
    ("size", "samples"), [(40, 8), (43, 8), (41, 8), (8, 8), (9, 8), (7, 1), (5, 2), (12, 5)]
)
def test_rounds_of_equal_tasks_are_predicted(size: int, samples: int, workers: int) -> None:
    tasks = leased(size, samples, workers, 12)
    lookahead = Lookahead([0, size])
    for task in tasks[:2]:
        lookahead.note([task])
    for number in range(2, 10):
        assert [*islice(lookahead.next(), 2)] == tasks[number : number + 2]
        lookahead.note([tasks[number]])


def test_nothing_is_predicted_without_a_task() -> None:
    lookahead = Lookahead([0, 10])
    assert not [*lookahead.next()]
    lookahead.note([Span(0, 0, 2), Span(0, 4, 5)])
    assert not [*lookahead.next()]


def test_first_task_may_be_the_last_sample() -> None:
    """A resumed run may start there."""
    lookahead = Lookahead([0, 10])
    lookahead.note([Span(2, 9, 10)])
    assert next(lookahead.next()) == Span(3, 0, 1)
    lookahead.note([Span(3, 0, 4)])
    assert [*islice(lookahead.next(), 2)] == [Span(3, 4, 8), Span(3, 8, 10)]


def test_predictions_end_with_the_shard() -> None:
    """A worker goes through its shard in order, and then to any other shard."""
    lookahead = Lookahead([0, 10, 31])
    lookahead.note([Span(0, 14, 18)])
    assert [*lookahead.next()] == [Span(0, 18, 22), Span(0, 22, 26), Span(0, 26, 31)]
    lookahead.note([Span(1, 0, 4)])
    assert [*lookahead.next()] == [Span(1, 4, 8), Span(1, 8, 10)]


class Pool:
    """A pool that records its requests."""

    depth = 3

    def __init__(self) -> None:
        self.open: dict[int, Minibatch] = {}
        self.order: list[list[int]] = []

    def request(self, number: int, minibatch: Minibatch) -> None:
        self.open[number] = minibatch
        self.order.append(minibatch.indices.tolist())

    def drop(self, numbers: Collection[int]) -> None:
        for number in numbers:
            del self.open[number]

    def result(self, number: int) -> Any:
        return self.open.pop(number).indices.tolist()


ORDER = sample_order(40)


def ahead() -> tuple[LoadAhead, Pool]:
    pool = Pool()
    return LoadAhead(pool, ORDER, [0, 40], 0, 4), pool


def run(loads: LoadAhead, *spans: tuple[int, int]) -> list[list[int]]:
    """Load the minibatches of a task, and compare them with its samples."""
    parts = tuple(Span(0, a, b) for a, b in spans)
    batches = minibatches(ORDER, 0, parts, 4)
    loads.plan(Task("w1:1", "w1", parts, 0), batches)
    found = [loads(batch) for batch in batches]
    assert found == [batch.indices.tolist() for batch in batches]
    return found


def test_minibatches_of_the_next_tasks_are_requested_once() -> None:
    """Two workers take turns. After two tasks, the third and fourth are on their way."""
    loads, pool = ahead()
    for start in (0, 8, 16, 24):
        run(loads, (start, start + 4))
    assert loads.dropped == 2  # after the first task, it expected 4-8 and 12-16 too
    indices = ORDER.epoch(0, 0).indices
    assert pool.order[-1] == ORDER.epoch(0, 1).indices[8:12].tolist()
    assert indices[32:36].tolist() in pool.order
    assert next(iter(pool.open.values())).indices.tolist() == indices[32:36].tolist()
    assert len(pool.order) == len({tuple(one) for one in pool.order})
    assert len(pool.open) == 3


def test_wrong_predictions_are_dropped() -> None:
    loads, pool = ahead()
    run(loads, (0, 8))
    run(loads, (20, 28), (30, 32))
    assert loads.dropped == 3
    run(loads, (0, 4))
    assert len(pool.open) == 3
    assert len(loads.open) == 3
