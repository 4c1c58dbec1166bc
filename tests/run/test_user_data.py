"""Data of PyTorch scripts in complete runs: augmentations, Hugging Face datasets, large files, and bad samples."""

import sys
from pathlib import Path
from threading import Lock
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from oddlot import SGD, VCASGD, Job, Shards, Synchronous, fit
from oddlot.core.sample_spans import Span
from oddlot.core.support.errors import JobError, UsageError
from oddlot.data.sample_order import minibatches
from oddlot.data.seeded_fetch import SeededFetch
from oddlot.data.seeding import number_of, seed_all
from tests.fits import distance, equals, local
from tests.transcripts import raises

SIZE, BATCH, SEED = 42, 8, 3
BAD = 17


class Crops(Dataset[Any]):
    """A dataset with random augmentation. `act` is called for the sample `BAD`."""

    def __init__(self, act: Any = None, **attributes: Any) -> None:
        self.act = act
        vars(self).update(attributes)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.act is not None and index == BAD:
            self.act()
        shift = int(torch.randint(3, ())) + int(np.random.randint(2))  # noqa: NPY002
        return torch.linspace(0, 1, 6)[shift : shift + 3] + index / SIZE, index % 2


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.3), nn.Linear(6, 2))


def a_job(data: Any, **settings: Any) -> Job:
    given: dict[str, Any] = {"model": net, "loss": nn.functional.cross_entropy, "device": "cpu"}
    return Job(train_data=data, **{**given, "optimizer": SGD(0.1, momentum=0.9), **settings})


def loader(**settings: Any) -> DataLoader[Any]:
    return DataLoader(Crops(), BATCH, sampler=WeightedRandomSampler([1.0, 3.0] * (SIZE // 2), 50), **settings)


def test_one_worker_equals_the_plain_loop() -> None:
    """The loop has the minibatches of the run, and seeds the generators before each step, as a task does."""
    job = a_job(loader())
    run = fit(job, Synchronous(), equals(1), until="epochs>=2", seed=SEED, quiet=True)
    seed_all(SEED)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    fetch, order = SeededFetch(job.train_batches(), SEED), job.sample_order()
    for epoch in range(2):
        for start in range(0, order.size, BATCH):
            span = Span(epoch, start, min(start + BATCH, order.size))
            (minibatch,) = minibatches(order, SEED, [span], BATCH)
            inputs, targets = fetch(minibatch)
            seed_all(number_of(SEED, epoch, start))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    assert distance(run.model, model) <= 1e-6


def test_number_of_workers_does_not_change_the_samples() -> None:
    """With SGD and equal machines, two workers with half of the batch make the same steps as one."""

    def job(batch: int) -> Job:
        return a_job(DataLoader(Crops(), batch, shuffle=True, drop_last=True), model=lambda: nn.Linear(3, 2))

    runs = [
        fit(job(BATCH // workers), Synchronous(), equals(workers), until="epochs>=2", seed=SEED, quiet=True)
        for workers in (1, 2)
    ]
    assert distance(runs[0].model, runs[1].model) <= 1e-5


class HubDataset:
    """A dataset with the interface of Hugging Face `datasets.Dataset`: columns, and items by index or list."""

    def __init__(self, columns: dict[str, list[Any]], kind: str = "") -> None:
        self.columns, self.kind = columns, kind

    def with_format(self, kind: str) -> "HubDataset":
        return HubDataset(self.columns, kind)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        return {
            name: torch.tensor(values[key]) if self.kind == "torch" else values[key]
            for name, values in self.columns.items()
        }

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self[key] for key in keys]


@pytest.mark.parametrize("load_workers", [0, 1])
def test_hugging_face_dataset_trains(load_workers: int) -> None:
    columns: dict[str, list[Any]] = {
        "x": [[float(row), 1.0, 0.0] for row in range(SIZE)],
        "label": [row % 2 for row in range(SIZE)],
    }

    def step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(batch["x"] / SIZE), batch["label"])

    columns_of_torch: Any = HubDataset(columns).with_format("torch")
    data = DataLoader(columns_of_torch, BATCH, shuffle=True)
    job = a_job(data, loss=None, training_step=step, load_workers=load_workers)
    run = fit(job, Synchronous(), local(1), until="epochs>=1", quiet=True)
    assert run.summary["samples_merged"] == SIZE


def test_parts_are_read_through_fsspec_with_bounded_memory() -> None:
    """A worker keeps one of six parts."""
    files = fsspec.filesystem("memory")
    paths = [f"memory://user_data/{part}.npz" for part in range(6)]
    for path in paths:
        with files.open(path, "wb") as file:
            np.savez(file, x=np.random.default_rng(0).random((20, 3), np.float32), y=np.arange(20) % 2)
    data = Shards(paths, max_open=1)
    run = fit(a_job(data, batch_size=5), VCASGD(), equals(1), until="epochs>=2", quiet=True)
    assert run.summary["samples_merged"] == 240
    assert len(data.open) <= 1


def test_unpicklable_attribute_of_a_dataset_is_named() -> None:
    with raises(UsageError, "cannot_be_pickled", attribute="job.train_data.inner.lock"):
        fit(a_job(DataLoader(Crops(inner=Crops(lock=Lock())), 8)), Synchronous(), local(1), until="epochs>=1")


@pytest.mark.parametrize("load_workers", [0, 2])
def test_file_that_disappears_names_its_sample(tmp_path: Path, load_workers: int) -> None:
    file = tmp_path / "17.txt"
    with raises(JobError, "user_code_failed", rows=[BAD]) as caught:
        fit(
            a_job(Crops(file.read_text), batch_size=BATCH, load_workers=load_workers),
            Synchronous(),
            local(1),
            until="epochs>=1",
        )
    assert "17.txt" in caught.fields["reason"]


def test_system_exit_in_a_dataset_names_its_sample() -> None:
    with raises(JobError, "user_code_failed", rows=[BAD]):
        fit(a_job(Crops(lambda: sys.exit(2)), batch_size=BATCH), Synchronous(), local(1), until="epochs>=1")
