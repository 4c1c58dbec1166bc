"""Random rows, uniform or by label frequency: their weights, and groups of examples that share them."""

from typing import Any

import numpy as np
import pytest
import torch

from oddlot.sparse import LSH, Clusters, SampledLinear, Uniform, Unigram
from oddlot.sparse.active_set import Labels
from oddlot.sparse.frequency_draws import FrequencyDraws
from oddlot.sparse.kernels import row_selection
from oddlot.sparse.sampler import Refresh
from tests.sparse.found import COLUMNS
from tests.transcripts import raises

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("make", [Uniform, Unigram])
def test_examples_of_a_group_share_random_rows(make: Any) -> None:
    layer = SampledLinear(
        COLUMNS, 1000, make(20, group=4, **({"refresh": Refresh(1)} if make is Unigram else {})), None
    )
    for _ in range(2):  # labels are known the second time
        layer(torch.zeros(8, COLUMNS), torch.arange(8))
    active = layer._begin(np.zeros((8, COLUMNS), np.float32), Labels.of(np.zeros(8, np.int64), 1)).active
    ends = active.starts + active.counts
    drawn = [
        set(active.rows[start + 1 : end].tolist()) for start, end in zip(active.starts, ends, strict=True)
    ]
    assert drawn == [drawn[0]] * 4 + [drawn[4]] * 4
    assert len(drawn[0] ^ drawn[4]) > 5


def test_alias_table_reproduces_its_probabilities() -> None:
    chances = np.random.default_rng(1).random(50) ** 4
    chances /= chances.sum()
    accept, alias = np.empty(50, np.float32), np.empty(50, np.int32)
    row_selection.make_alias(chances, accept, alias)
    found = accept + np.bincount(alias, 1 - accept, 50)
    assert found / 50 == pytest.approx(chances, abs=1e-7)


def test_rows_are_drawn_by_label_frequency() -> None:
    """The weight of a row is the inverse of its draw frequency."""
    sampler = Unigram(60, refresh=Refresh(5))
    layer = SampledLinear(COLUMNS, 1000, sampler, None)
    labels = torch.from_numpy(np.random.default_rng(1).integers(0, 30, 200) ** 2)
    hidden, drawn = np.zeros((200, COLUMNS), np.float32), np.zeros(1000)
    for _ in range(5):
        layer(torch.from_numpy(hidden), labels)
    assert sampler.frequencies.counts is not None
    assert sampler.frequencies.counts.sum() == 5 * 200
    layer.batches += 1
    for step in range(100):
        layer.batches = 6 + 5 * step
        active = layer._begin(hidden, Labels.of(np.full(200, 999), 1000), learns=False).active
        for start, count in zip(active.starts, active.counts, strict=True):
            drawn[active.rows[start + 1 : start + count]] += 1
    expected = np.exp(-sampler.frequencies.row_weights)
    assert drawn[:-1] / 20_000 == pytest.approx(expected[:-1], abs=0.02)
    assert drawn[[n * n for n in range(30)]].min() > 5 * drawn[[2, 3, 5]].max()


@pytest.mark.parametrize("make", [LSH, Clusters, Unigram])
def test_known_counts_apply_from_the_first_batch(make: Any) -> None:
    """Later labels and `forget` do not change known frequencies."""
    counts = np.zeros(1000, np.int64)
    counts[:4] = 25
    sampler = make(counts=counts)
    layer = SampledLinear(COLUMNS, 1000, sampler, None)
    for _ in range(2):
        layer(torch.randn(64, COLUMNS), torch.arange(64) + 100)
        assert sampler.frequencies.row_weights[:4].max() < 0.01
        assert sampler.frequencies.row_weights[4:].min() > 1.0
        sampler.forget()
    assert counts.sum() == 100


@pytest.mark.parametrize("make", [LSH, Clusters, Unigram])
@pytest.mark.parametrize(("first", "then"), [(3000, 30), (30, 3000)])
def test_known_counts_of_another_length_are_rejected(make: Any, first: int, then: int) -> None:
    sampler = make(counts=np.ones(first, np.int64))
    SampledLinear(COLUMNS, first, sampler, None)(torch.randn(4, COLUMNS), torch.arange(4))
    other = SampledLinear(COLUMNS, then, sampler, None)
    with raises(ValueError, "different_lengths", name="counts", given=first, expected=then):
        other(torch.randn(4, COLUMNS), torch.arange(4))


@pytest.mark.parametrize("make", [LSH, Clusters])
def test_remaining_rows_are_drawn_by_frequency(make: Any) -> None:
    sampler = make(found=20, by_chance=50, refresh=Refresh(1))
    layer = SampledLinear(COLUMNS, 1000, sampler, None)
    for _ in range(3):
        layer(torch.randn(64, COLUMNS), torch.arange(64) % 4)
    weights = sampler.frequencies.row_weights
    assert weights[:4].max() < 0.01, "one label of four stands for itself"
    assert weights[4:].min() > 2.0
    sampler.frequency = sampler.frequencies.share = 0.0
    layer(torch.randn(64, COLUMNS), torch.arange(64) % 4)
    layer(torch.randn(64, COLUMNS), torch.arange(64) % 4)
    assert np.ptp(sampler.frequencies.row_weights) == 0


def test_unigram_draws_uniformly_before_it_has_seen_labels() -> None:
    sampler = Unigram(60)
    layer = SampledLinear(COLUMNS, 1000, sampler, None)
    layer(torch.zeros(1, COLUMNS), [3])
    weights = sampler.frequencies.row_weights
    assert np.ptp(weights) == 0
    assert weights[0] == pytest.approx(np.log(1000 / 60), abs=0.05)
    sampler.forget()
    assert sampler.frequencies.counts is None


def test_large_outputs_draw_more_random_rows() -> None:
    """No row has a weight above 1,500, because larger weights would be too noisy."""
    assert [Clusters().most(outputs) for outputs in (100, 30_000, 300_000, 670_091)] == [100, 400, 400, 646]
    assert Clusters(by_chance=0).most(670_091) == 200


def test_alias_table_of_known_counts_is_built_once() -> None:
    frequencies = FrequencyDraws(0.8, np.arange(5))
    frequencies.count_up(5, 3)
    table = frequencies.accept
    frequencies.forget()
    frequencies.count_up(5, 3)
    assert frequencies.accept is table
