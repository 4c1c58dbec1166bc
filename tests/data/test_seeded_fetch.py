"""Augmentations depend only on the seed, the epoch and the sample."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from oddlot.data.batches import Batches
from oddlot.data.sample_order import Minibatch
from oddlot.data.seeded_fetch import SeededFetch

DRAWS = {
    "torch": lambda: float(torch.rand(())),
    "numpy": lambda: float(np.random.rand()),  # noqa: NPY002 - as users' augmentations do
    "random": random.random,
    "all": lambda: float(torch.rand(())) + float(np.random.rand()) + random.random(),  # noqa: NPY002
    "one after the other": lambda: random.random() if torch.rand(()) < 0.5 else float(torch.rand(())),
}


class Augmented(Dataset[Any]):
    """A dataset with random samples, for which `reads` counts the samples that were read."""

    def __init__(self, draw: Any, every: int = 1) -> None:
        self.draw, self.every, self.reads = draw, every, 0
        self.rng: Any = None

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Tensor:
        self.reads += 1
        return torch.tensor([float(index), self.draw() if index % self.every == 0 else 0.0])


class ManyAtOnce(Augmented):
    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [self[index] for index in indices]


def batch(*indices: int, epoch: int = 0, repeats: Any = None) -> Minibatch:
    found = Minibatch.of(np.array(indices), epoch)
    return found if repeats is None else replace(found, repeats=repeats)


def fetch(data: Any, seed: int = 5, collate: Any = None) -> SeededFetch:
    return SeededFetch(Batches(data, collate), seed)


@pytest.mark.parametrize("kind", [Augmented, ManyAtOnce])
@pytest.mark.parametrize("name", DRAWS)
def test_sample_is_the_same_in_every_minibatch_and_process(name: str, kind: Any) -> None:
    one, two = fetch(kind(DRAWS[name])), fetch(kind(DRAWS[name]))
    torch.manual_seed(1)
    alone = one(batch(7))
    torch.manual_seed(2)
    random.seed(8)
    two(batch(1, 2, 3))
    together = two(batch(4, 7, 9))
    assert torch.equal(together[1], alone[0])
    assert together[0, 1] != together[1, 1]
    assert not torch.equal(two(batch(7, epoch=1)), alone)
    assert not torch.equal(fetch(kind(DRAWS[name]), seed=6)(batch(7)), alone)


def test_repeated_sample_of_an_epoch_gets_another_augmentation() -> None:
    found = fetch(Augmented(random.random))(batch(7, 7, repeats=np.array([0, 1])))
    assert found[0, 1] != found[1, 1]


def test_rare_draws_are_the_same_with_and_without_earlier_draws() -> None:
    """The first minibatch draws nothing, so the generators are not seeded until the second one."""
    seen, fresh = fetch(Augmented(random.random, every=5)), fetch(Augmented(random.random, every=5))
    seen(batch(5))
    assert torch.equal(seen(batch(1, 2)), fresh(batch(1, 2)))
    assert torch.equal(seen(batch(1, 10)), fresh(batch(1, 10)))


def test_generators_are_left_as_they_were() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    reads = fetch(Augmented(DRAWS["all"]))
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    for _ in range(2):
        reads(batch(1, 2))
        now = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
        assert torch.equal(before[0], now[0])
        assert before[1:] == now[1:]


def test_data_without_draws_are_read_once() -> None:
    data = Augmented(lambda: 0.0)
    reads = fetch(data)
    reads(batch(1, 2))
    reads(batch(3, 4))
    assert data.reads == 4


def test_draws_of_collate_depend_on_the_first_sample() -> None:
    def mixed(samples: list[Tensor]) -> Tensor:
        return torch.stack(samples) + torch.rand(())

    one, two = fetch(Augmented(lambda: 0.0), collate=mixed), fetch(Augmented(lambda: 0.0), collate=mixed)
    first = one(batch(3, 4))
    two(batch(8, 9))
    assert torch.equal(first, two(batch(3, 4)))
    assert not torch.equal(first[0], two(batch(4, 3))[1])


@pytest.mark.parametrize(
    "make",
    [np.random.default_rng, random.Random, np.random.RandomState, lambda: torch.Generator().manual_seed(1)],
)
def test_generators_in_datasets_are_seeded(make: Any) -> None:
    def data() -> Any:
        parts = []
        for _ in range(2):
            rng = make()
            draw = (
                (lambda rng=rng: float(torch.rand((), generator=rng)))
                if isinstance(rng, torch.Generator)
                else (lambda rng=rng: float(rng.random()))
            )
            parts.append(Augmented(draw))
            parts[-1].rng = rng
        return ConcatDataset(parts)

    one, two = fetch(data()), fetch(data())
    two(batch(1, 25))
    assert torch.equal(one(batch(3, 30)), two(batch(3, 30)))
    found = one(batch(3, 23, epoch=2))
    assert found[0, 1] != found[1, 1]
