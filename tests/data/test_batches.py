"""Batches of samples from spans of positions."""

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from oddlot.core.sample_spans import Span
from oddlot.core.support.errors import JobError, UsageError
from oddlot.data.batches import Batches, move, order
from oddlot.data.sample_order import minibatches, sample_order
from tests.transcripts import raises

ROWS = np.arange(12.0, dtype=np.float32).reshape(6, 2)


class Squares:
    """A map-style dataset with items (input, target)."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([float(index)]), index * index


class Stream(IterableDataset[int]):
    """A dataset with a length, but without items by index."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))

    def __len__(self) -> int:
        return 6


class ManyAtOnce(Squares):
    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
        return [(torch.tensor([-float(index)]), 0) for index in indices]


def indices(*wanted: int) -> Any:
    return np.array(wanted)


def test_arrays_give_rows_and_datasets_collated_samples() -> None:
    """A list is a dataset, even if its items are tensors."""
    batches = Batches((ROWS, torch.arange(6)))
    inputs, targets = batches.fetch(indices(4, 0))
    assert len(batches) == 6
    assert inputs.tolist() == [[8.0, 9.0], [0.0, 1.0]]
    assert targets.tolist() == [4, 0]
    batches = Batches([torch.full((10,), float(number)) for number in range(6)])
    assert len(batches) == 6
    assert batches.fetch(indices(4, 0))[:, 0].tolist() == [4.0, 0.0]
    inputs, targets = Batches(Squares()).fetch(indices(3, 1))
    assert inputs.tolist() == [[3.0], [1.0]]
    assert targets.tolist() == [9, 1]
    assert Batches(Squares(), lambda samples: sum(y for _, y in samples)).fetch(indices(2, 3)) == 13
    assert Batches(ManyAtOnce()).fetch(indices(5))[0].tolist() == [[-5.0]]


@pytest.mark.parametrize(
    ("data", "code", "fields"),
    [
        ((ROWS, ROWS[:4]), "different_lengths", {"lengths": [6, 4]}),
        ((ROWS[:0], ROWS[:0]), "empty_data", {"name": "data"}),
        ([], "empty_data", {"name": "data"}),
        (iter([1, 2]), "not_a_dataset", {"type": "list_iterator"}),
        (7, "not_a_dataset", {"type": "int"}),
        ({"x": ROWS}, "not_a_dataset", {"type": "dict"}),
        ("squares.npy", "not_a_dataset", {"type": "str"}),
        (b"squares", "not_a_dataset", {"type": "bytes"}),
        (Stream(), "not_a_dataset", {"type": "Stream"}),
        (DataLoader(TensorDataset(torch.zeros(2))), "not_a_dataset", {"type": "DataLoader"}),
        ((np.array(["a", "b"]),), "not_a_tensor", {"name": "array 0 of data", "dtype": "<U1"}),
        ((ROWS, ROWS[::-1]), "not_a_tensor", {"name": "array 1 of data", "dtype": "float32"}),
    ],
    ids=[
        "lengths",
        "no rows",
        "no samples",
        "iterator",
        "number",
        "dict",
        "str",
        "bytes",
        "iterable",
        "loader",
        "text",
        "backwards",
    ],
)
def test_unusable_data_is_rejected(data: Any, code: str, fields: dict[str, Any]) -> None:
    with raises(UsageError, code, **fields):
        Batches(data)


def test_failing_dataset_length_raises_with_its_traceback() -> None:
    class Endless(Squares):
        def __len__(self) -> int:
            raise OverflowError

    with raises(JobError, "user_code_failed") as caught:
        Batches(Endless(), name="the evaluation set")
    assert isinstance(caught.value.__cause__, OverflowError)
    assert caught.fields["reason"].endswith("OverflowError\n")


def test_order_depends_on_seed_and_epoch() -> None:
    first = order(7, 0, 50)
    assert sorted(first) == list(range(50))
    assert np.array_equal(first, order(7, 0, 50))
    for other in (order(7, 1, 50), order(8, 0, 50)):
        assert not np.array_equal(first, other)


def test_shard_keeps_its_samples_across_epochs() -> None:
    one, two = order(7, 0, 50, shards=3), order(7, 1, 50, shards=3)
    assert sorted(one) == list(range(50))
    for a, b in ((0, 16), (16, 33), (33, 50)):
        assert set(one[a:b]) == set(two[a:b])
        assert list(one[a:b]) != list(two[a:b])
    assert set(one[:16]) != set(order(8, 0, 50, shards=3)[:16])


def test_spans_are_split_into_minibatches() -> None:
    positions = order(7, 2, 50)
    batches = minibatches(sample_order(50), 7, [Span(2, 10, 15), Span(2, 40, 46)], 4)
    assert [batch.positions for batch in batches] == [4, 4, 3]
    indices = np.concatenate([batch.indices for batch in batches])
    assert np.array_equal(indices, [*positions[10:15], *positions[40:46]])


@pytest.mark.parametrize(
    ("samples", "batch", "sizes"),
    [(9, 4, [4, 5]), (5, 4, [5]), (1, 4, [1]), (3, 1, [1, 1, 1]), (8, 4, [4, 4]), (10, 4, [4, 4, 2])],
)
def test_single_remaining_sample_joins_another_minibatch(samples: int, batch: int, sizes: list[int]) -> None:
    """BatchNorm cannot estimate a variance from a single sample."""
    found = minibatches(sample_order(50), 7, [Span(0, 3, 3 + samples)], batch)
    assert [len(one.indices) for one in found] == sizes


def test_move_transfers_every_tensor_of_a_batch() -> None:
    pair = namedtuple("pair", "x y")  # noqa: PYI024 - datasets use such types
    here = torch.zeros(2)
    moved = move({"a": [here], "b": (here, "text"), "c": pair(here, 3)}, torch.device("meta"))
    assert moved["a"][0].is_meta
    assert moved["b"][0].is_meta
    assert moved["c"].x.is_meta
    assert (type(moved["c"]), moved["c"].y, moved["b"][1]) == (pair, 3, "text")


class AttributeBatch(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


def test_move_keeps_the_batch_object() -> None:
    batch = AttributeBatch(x=torch.zeros(2))
    assert move(batch, torch.device("cpu")) is batch
    moved = move(batch, torch.device("meta"))
    assert type(moved) is AttributeBatch
    assert moved.x.device.type == "meta"
