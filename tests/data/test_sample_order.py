"""The order of samples in an epoch: permutations, samplers and batch samplers."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SubsetRandomSampler, WeightedRandomSampler

from oddlot.core.sample_spans import Span
from oddlot.core.support.errors import JobError, UsageError
from oddlot.data.batches import order
from oddlot.data.sample_order import OfSampler, minibatches, repeats_of, rows_of, sample_order
from tests.transcripts import raises

DATA = range(50)


class Epochs(Sampler[int]):
    """A sampler that rotates the samples by its epoch, and mixes them with a generator of its own."""

    def __init__(self) -> None:
        self.first, self.mixer = 0, random.Random(3)

    def set_epoch(self, epoch: int) -> None:
        self.first = 10 * epoch

    def __iter__(self) -> Iterator[int]:
        head = [(self.first + place) % 50 for place in range(5)]
        tail = [index for index in DATA if index not in head]
        self.mixer.shuffle(tail)
        return iter([*head, *tail])

    def __len__(self) -> int:
        return 50


class Stateful(Sampler[int]):
    """A sampler with an order that depends on how often it was called."""

    calls = 0

    def __iter__(self) -> Iterator[int]:
        self.calls += 1
        return iter([(index + self.calls) % 50 for index in DATA])

    def __len__(self) -> int:
        return 50


class Given(list[Any]):
    """A sampler with these items."""

    length: int | None = None

    def __len__(self) -> int:
        return super().__len__() if self.length is None else self.length


SAMPLERS: dict[str, Any] = {
    "weighted": lambda: WeightedRandomSampler([*map(float, range(50))], 80),
    "subset": lambda: SubsetRandomSampler(range(10, 30), generator=torch.Generator().manual_seed(9)),
    "with replacement": lambda: RandomSampler(DATA, replacement=True),
    "own generator": Epochs,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_sampler_order_depends_only_on_seed_and_epoch(name: str) -> None:
    """The order is the same after other draws, and drawing it leaves the global generators as they were."""
    one, two = (sample_order(50, sampler=SAMPLERS[name]()) for _ in range(2))
    first = one.epoch(7, 0).indices
    assert one.size == len(first) == len(SAMPLERS[name]())
    one.epoch(7, 1), torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    states = torch.get_rng_state(), random.getstate()
    assert np.array_equal(first, two.epoch(7, 0).indices)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    for other in (two.epoch(7, 1), two.epoch(8, 0)):
        assert not np.array_equal(first, other.indices)
    if isinstance(one, OfSampler):
        one.check(7)


def test_set_epoch_of_a_sampler_is_called() -> None:
    drawn = sample_order(50, sampler=Epochs())
    assert [drawn.epoch(0, epoch).indices[0] for epoch in (0, 3, 1)] == [0, 30, 10]
    batched = sample_order(50, batch_sampler=BatchSampler(Epochs(), 4, drop_last=False))
    assert batched.epoch(0, 2).indices[0] == 20


def test_batches_of_a_batch_sampler_are_positions() -> None:
    """A minibatch is one batch of the sampler, of any length."""
    drawn = sample_order(50, batch_sampler=[[3, 4, 5], [7], [8, 9], [10, 3]])
    assert drawn.size == 4
    found = minibatches(drawn, 0, [Span(0, 0, 2), Span(0, 3, 4)], 1)
    assert [batch.indices.tolist() for batch in found] == [[3, 4, 5], [7], [10, 3]]
    assert [batch.positions for batch in found] == [1, 1, 1]
    assert found[2].repeats.tolist() == [0, 1]
    several = minibatches(sample_order(50), 0, [Span(0, 48, 50), Span(1, 0, 2)], 3)
    assert [batch.epochs.tolist() for batch in several] == [[0, 0, 1, 1]]
    assert rows_of(drawn, 0, [Span(0, 0, 1), Span(0, 3, 4)]) == [3, 4, 5, 10]


def test_repeats_count_earlier_positions() -> None:
    assert repeats_of(np.array([4, 1, 4, 4, 1])).tolist() == [0, 0, 1, 2, 1]  # type: ignore[union-attr]
    assert repeats_of(np.array([4, 1, 0])) is None


def test_drop_last_leaves_out_other_samples_in_each_epoch() -> None:
    drawn = sample_order(50, size=48)
    left = [set(DATA) - set(drawn.epoch(1, epoch).indices.tolist()) for epoch in range(3)]
    assert [len(one) for one in left] == [2, 2, 2]
    assert left[0] != left[1]
    assert drawn.epoch(1, 0).indices.tolist() == order(1, 0, 50)[:48].tolist()


def test_invalid_items_and_lengths_of_a_sampler_are_rejected() -> None:
    for item in (50, -1, "x", [3, 4]):
        with raises(JobError, "sampler_item_invalid", given=item, samples=50):
            sample_order(50, sampler=Given([3, item])).epoch(0, 0)
    shrunk = Given([1, 2, 3])
    drawn = sample_order(50, sampler=shrunk)
    shrunk.length = 2
    shrunk.pop()
    with raises(JobError, "sampler_changed", found=2, expected=3, epoch=4):
        drawn.epoch(0, 4)
    with raises(UsageError, "empty_data"):
        sample_order(50, sampler=Given())
    with raises(JobError, "sampler_item_invalid", given=[]):
        sample_order(50, batch_sampler=[[3], []]).epoch(0, 0)


def test_sampler_with_state_is_not_reproducible() -> None:
    drawn = sample_order(50, sampler=Stateful())
    assert isinstance(drawn, OfSampler)
    with raises(UsageError, "sampler_not_reproducible", type="Stateful"):
        drawn.check(0)
