"""A Job takes over the settings of DataLoaders, and rejects those that it cannot use."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from oddlot import Job, Shards, Synchronous, fit
from oddlot.core.support.errors import UsageError
from tests.fits import fleet
from tests.transcripts import raises, warns

DATA = TensorDataset(torch.randn(21, 2), torch.randn(21, 2))


def pairs(samples: list[Any]) -> Any:
    return default_collate(samples)


def note_start(number: int) -> None:
    pass


def a_job(train: Any = DATA, **settings: Any) -> Job:
    return Job(lambda: nn.Linear(2, 2), train, nn.functional.mse_loss, device="cpu", **settings)


def test_training_loader_is_taken_over() -> None:
    loader = DataLoader(
        DATA, 4, shuffle=True, num_workers=2, collate_fn=pairs, drop_last=True, worker_init_fn=note_start
    )
    job = a_job(loader)
    assert job.train_data is DATA
    assert (job.batch_size, job.load_workers, job.drop_last) == (4, 2, True)
    assert (job.collate, job.load_worker_init, job.sampler) == (pairs, note_start, None)
    assert job.sample_order().size == 20
    plain = a_job(DataLoader(DATA, 7, shuffle=True, drop_last=True))
    assert (plain.drop_last, plain.collate, plain.load_workers) == (False, None, 0)


def test_samplers_are_taken_over() -> None:
    """A script without shuffling trains in the order of its data."""
    in_order = a_job(DataLoader(DATA, 4))
    assert isinstance(in_order.sampler, SequentialSampler)
    assert in_order.sample_order().epoch(3, 2).indices.tolist() == list(range(21))
    weighted = WeightedRandomSampler([1.0] * 21, 40)
    assert a_job(DataLoader(DATA, 4, sampler=weighted)).sampler is weighted
    drawn = a_job(DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=8)))
    assert drawn.sample_order().size == 8
    unpacked = a_job(DataLoader(DATA, batch_sampler=BatchSampler(weighted, 5, drop_last=False)))
    assert (unpacked.sampler, unpacked.batch_size, unpacked.batch_sampler) == (weighted, 5, None)


class Lengths(BatchSampler):
    def __init__(self) -> None:
        super().__init__(SequentialSampler(DATA), 5, drop_last=False)

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2], [3], [4, 5]])

    def __len__(self) -> int:
        return 3


def test_batch_sampler_is_taken_over() -> None:
    job = a_job(DataLoader(DATA, batch_sampler=Lengths(), collate_fn=pairs))
    assert (job.batch_size, job.collate, job.sample_order().size) == (1, pairs, 3)
    with raises(UsageError, "batch_size_with_batch_sampler", given=32):
        a_job(batch_sampler=Lengths())


class Batched(Dataset[Any]):
    """A dataset of batches."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((3, 2), float(index)), torch.zeros(3, 2)


def test_loader_without_batching_is_taken_over() -> None:
    job = a_job(DataLoader(Batched(), batch_size=None))
    assert job.batch_size == 1
    assert job.train_batches().fetch(torch.tensor([4]).numpy())[0].tolist() == [[4.0, 4.0]] * 3


def test_evaluation_loader_is_taken_over() -> None:
    job = a_job(eval_data=DataLoader(DATA, 6, collate_fn=pairs))
    assert (job.eval_data, job.eval_batch_size, job.eval_collate) == (DATA, 6, pairs)
    shuffled = a_job(eval_data=DataLoader(DATA, 6, shuffle=True), collate=pairs)
    assert (shuffled.eval_data, shuffled.eval_collate) == (DATA, default_collate)
    part = a_job(eval_data=DataLoader(DATA, 6, sampler=SubsetRandomSampler([3, 5, 8])))
    assert isinstance(part.eval_data, Subset)
    assert sorted(part.eval_data.indices) == [3, 5, 8]
    with warns("loader_setting_ignored", settings=["drop_last"]):
        a_job(eval_data=DataLoader(DATA, 6, drop_last=True))


class Endless(DataLoader[Any]):
    def __iter__(self) -> Any:
        while True:
            yield from super().__iter__()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


@pytest.mark.parametrize(
    ("settings", "code", "fields"),
    [
        ({"train": DataLoader(DATA, 4), "batch_size": 8}, "setting_given_twice", {"name": "batch_size"}),
        ({"train": DataLoader(DATA, 4, num_workers=1), "load_workers": 2}, "setting_given_twice", {"loader": 1}),
        ({"train": Endless(DATA, 4)}, "loader_not_taken_over", {"type": "Endless"}),
        ({"train": DataLoader(Stream(), 4)}, "not_a_dataset", {"type": "Stream"}),
        ({"train": DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, 0))}, "distributed_sampler", {}),
        ({"eval_data": DataLoader(DATA, batch_sampler=Lengths())}, "loader_not_taken_over", {"name": "eval_data"}),
        ({"sampler": [1, 2], "batch_sampler": [[1]], "batch_size": 1}, "settings_exclude", {}),
        ({"sampler": 3}, "not_a_sampler", {"type": "int"}),
        ({"sampler": iter([3])}, "not_a_sampler", {"type": "list_iterator"}),
        ({"sampler": [1, 2], "drop_last": True}, "drop_last_with_sampler", {}),
        ({"train": DataLoader(DATA, 4, drop_last=True)}, "drop_last_with_sampler", {"type": "SequentialSampler"}),
        ({"train": Shards.of([torch.zeros(4, 2)], 2), "sampler": [1]}, "sampler_with_shards", {}),
        ({"train": Shards.of([torch.zeros(4, 2)], 2), "drop_last": True}, "drop_last_with_shards", {}),
        ({"num_workers": 2}, "unknown_name", {"nearest": "load_workers"}),
        ({"collate_fn": pairs}, "unknown_name", {"nearest": "collate"}),
    ],
)  # fmt: skip
def test_loaders_and_samplers_that_do_not_fit_are_rejected(
    settings: dict[str, Any], code: str, fields: dict[str, Any]
) -> None:
    with raises(UsageError, code, **fields):
        a_job(**settings)


def test_settings_without_effect_are_named() -> None:
    with warns("loader_setting_ignored", settings=["timeout"]):
        a_job(DataLoader(DATA, 4, num_workers=1, timeout=3))


@pytest.mark.parametrize(
    ("loader", "positions"),
    [
        (DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * 21, 40)), 40),
        (DataLoader(DATA, 4, shuffle=True, drop_last=True), 20),
        (DataLoader(DATA, batch_sampler=Lengths()), 3),
    ],
    ids=["weighted", "drop_last", "batch_sampler"],
)
def test_run_counts_the_positions_of_an_epoch(loader: Any, positions: int) -> None:
    result = fit(a_job(loader), Synchronous(), fleet(2), until="epochs>=3")
    assert result.summary["samples_merged"] == 3 * positions
