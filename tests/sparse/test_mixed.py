"""Mixed: distinct rows of several samplers. Only the last sampler draws random rows. State is reset together."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from oddlot.sparse import LSH, Clusters, Mixed, SampledLinear, Sampler, Shared, Uniform, Unigram
from tests.sparse.found import COLUMNS, rows_for, some_rows
from tests.transcripts import mask, raises, warns

LONG: dict[str, Any] = {"digits": 6, "tables": 8, "found": 2000, "by_chance": 0, "most_of_bucket": 2000}

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass
class Shifted:
    """A sampler with the seeds that it would have at position `place` of `Mixed`."""

    of: Sampler
    place: int

    def prepare(self, crew: Any, weight: Any, bias: Any, step: int, seed: int) -> None:
        self.of.prepare(crew, weight, bias, step, seed + self.place)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)


def test_two_hashes_of_one_family_are_independent() -> None:
    weight, hidden = some_rows(), some_rows()[5:2000:20]
    one, both = (rows_for(Mixed([LSH(**LONG) for _ in range(n)]), weight, hidden) for n in (1, 2))
    assert sum(map(len, both)) > 1.3 * sum(map(len, one))


def test_sampler_shared_with_another_layer_resets_its_state() -> None:
    shared = Clusters()
    mine = SampledLinear(COLUMNS, 300, Mixed([LSH(by_chance=0), shared]), None)
    others = SampledLinear(COLUMNS, 20_000, shared, None)
    for _ in range(3):
        for layer in (mine, others):
            layer(torch.randn(4, COLUMNS), torch.arange(4))
            assert shared.clustering.codes.shape[1] == layer.out_features


def test_mixed_returns_the_union_without_duplicates() -> None:
    def members() -> list[Sampler]:
        return [LSH(**LONG), LSH("dwta", **(LONG | {"digits": 2})), Clusters(found=2000, by_chance=0)]

    weight, hidden = some_rows(), some_rows()[5:2000:20]
    each = [rows_for(Shifted(sampler, place), weight, hidden) for place, sampler in enumerate(members())]
    assert all(one - two and two - one for one, two in zip(each[0], each[2], strict=True))
    assert rows_for(Mixed(members()), weight, hidden) == [
        set.union(*found) for found in zip(*each, strict=True)
    ]


@pytest.mark.parametrize(
    "last", [Uniform(50), Unigram(50), Shared(50), Clusters(by_chance=50)], ids=lambda one: type(one).__name__
)
def test_only_the_last_sampler_draws_random_rows(last: Sampler) -> None:
    layer = SampledLinear(COLUMNS, 1000, Mixed([LSH(found=30, by_chance=0), last]), None)
    layer(torch.randn(4, COLUMNS), torch.arange(4))
    assert 0 < layer.chance_share < 1
    assert layer.chance_share * layer.active_rows <= 50


@pytest.mark.parametrize("first", [Uniform(50), Clusters()], ids=lambda one: type(one).__name__)
def test_earlier_sampler_with_random_rows_raises(first: Sampler) -> None:
    layer = SampledLinear(COLUMNS, 1000, Mixed([first, LSH()]), None)
    with raises(ValueError, "by_chance_not_last", place=0):
        layer(torch.randn(4, COLUMNS), torch.arange(4))


def test_replaced_rows_reset_all_samplers() -> None:
    """After `rows` are replaced, the state of all samplers is outdated."""
    both = Mixed([Clusters(by_chance=0), LSH(**LONG)])
    rows_for(both, some_rows(), some_rows()[:10])
    changed = -some_rows()[:, ::-1].copy()
    hidden = changed[5:2000:20]
    fresh = Mixed([Clusters(by_chance=0), LSH(**LONG)])
    assert rows_for(both, changed, hidden) == rows_for(fresh, changed, hidden)


def test_lsh_that_finds_nothing_warns_inside_mixed() -> None:
    hash_alone = LSH(digits=14, tables=1, found=200, by_chance=0)
    mask(number=r"\d+")
    with warns("unsuitable_tables"):
        rows_for(
            Mixed([Clusters(found=400, by_chance=0), hash_alone]),
            some_rows(),
            np.zeros((3, COLUMNS), np.float32) + 1,
        )
    assert hash_alone.lacks
