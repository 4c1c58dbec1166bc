"""Iterable datasets as parts: each sample counts once, in minibatches of one part."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, get_worker_info

from oddlot import Job, Shards, Synchronous, fit
from oddlot.core.support.errors import JobError, UsageError
from oddlot.data.batches import Batches
from oddlot.data.sample_order import Minibatch
from oddlot.data.seeded_fetch import SeededFetch
from tests.fits import distance, equals, local
from tests.transcripts import raises


class Lines(IterableDataset[Any]):
    """Samples `first` to `first + count`, with noise. `reads` counts the iterations."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count, self.reads = first, count, 0

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        assert get_worker_info() is None, "a part is read completely, also in a loading process"
        self.reads += 1
        for number in range(self.first, self.first + self.count):
            yield torch.tensor([float(number), random.random()]), number % 2


def parts(*sizes: int) -> list[Lines]:
    starts = np.cumsum([0, *sizes]).tolist()
    return [Lines(start, size) for start, size in zip(starts, sizes, strict=False)]


def rows(batch: Any) -> list[float]:
    return [float(one) for one in batch[0][:, 0]]


def indices(*wanted: int) -> Any:
    return np.array(wanted)


def test_samples_of_iterables_are_found_by_index() -> None:
    data = Shards.from_iterables(parts(5, 3, 4))
    batches = Batches(data)
    assert (len(batches), data.cuts, batches.is_plain) == (12, (0, 5, 8, 12), False)
    assert rows(batches.fetch(indices(6, 0, 11))) == [6, 0, 11]
    assert [part.source.reads for part in data.parts] == [2, 2, 2]  # counted, and read


def test_declared_sizes_and_lengths_save_a_reading() -> None:
    lines = parts(5, 3)
    assert len(Shards.from_iterables(lines, sizes=[5, 3])) == 8
    assert len(Shards.from_iterables([[1, 2], (3, 4, 5)])) == 5
    assert [one.reads for one in lines] == [0, 0]
    assert len(Shards.from_iterables([lambda: iter([1, 2])])) == 2


def test_part_with_another_number_of_samples_fails() -> None:
    data = Shards.from_iterables(parts(5, 3), sizes=[5, 4])
    with raises(JobError, "part_changed", rows=[3], expected=4, path="1 (Lines)"):
        Batches(data).fetch(indices(5))


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ([iter([1])], "part_read_once"),
        ([(number for number in range(3))], "part_read_once"),
        ([3], "part_not_iterable"),
        ([], "no_parts"),
        (Lines(0, 3), "invalid_value"),
    ],
)
def test_unusable_parts_are_rejected(given: Any, code: str) -> None:
    with raises(UsageError, code):
        Shards.from_iterables(given)


def test_random_samples_of_a_part_are_the_same_on_every_worker() -> None:
    one, two = (SeededFetch(Batches(Shards.from_iterables(parts(5, 3))), 0) for _ in range(2))
    random.seed(1)
    first = one(Minibatch.of(indices(1, 3), 0))
    random.seed(2)
    two(Minibatch.of(indices(3), 0))
    assert torch.equal(first[0], two(Minibatch.of(indices(1, 3), 1))[0])


def test_worker_keeps_at_most_max_open_parts() -> None:
    """The part that was not used for longest is closed."""
    data = Shards.from_iterables(parts(2, 2, 2), max_open=2)
    for index in (0, 2, 0, 4, 1):
        Batches(data).fetch(indices(index))
    assert [*data.open] == [2, 0]
    arrays = Shards([0, 1, 2], lambda part: [np.full(2, part)], [2, 2, 2], max_open=1)
    assert arrays.fetch(indices(1, 3, 5))[0].tolist() == [0, 1, 2]
    assert [*arrays.open] == [2]
    with raises(UsageError, "invalid_value", name="max_open"):
        Shards.from_iterables(parts(2), max_open=0)


@pytest.mark.parametrize("load_workers", [0, 2])
def test_run_on_iterables_counts_each_sample_once(load_workers: int) -> None:
    def job(count: int) -> Job:
        return Job(
            lambda: nn.Linear(2, 2),
            Shards.from_iterables(parts(9, 7, 8)),
            nn.functional.cross_entropy,
            batch_size=4,
            device="cpu",
            load_workers=count,
        )

    run = fit(job(load_workers), Synchronous(), local(1), until="epochs>=2", quiet=True)
    plain = fit(job(0), Synchronous(), equals(1), until="epochs>=2", quiet=True)
    assert run.summary["samples_merged"] == 48
    assert distance(run.model, plain.model) == 0
