"""Largest logits: exact in blocks, and approximate from few rows with a measured recall."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from oddlot.sparse import topk as exact
from oddlot.sparse.kernels import clusters
from oddlot.sparse.threads import Crew
from oddlot.sparse.topk import FIRST_PROBES, MAX_WANTED, Index, Search, exact_loss, exact_topk


def a_layer(rows: int = 3000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return hidden vectors, rows in clusters of ten, and biases."""
    chance = torch.Generator().manual_seed(1)
    centers = torch.randn(rows // 10, 16, generator=chance).repeat_interleave(10, 0)
    weight = centers + 0.5 * torch.randn(rows, 16, generator=chance)
    hidden = weight[torch.randint(0, rows, (200,), generator=chance)] + 0.3
    return hidden, weight, torch.randn(rows, generator=chance)


@pytest.mark.parametrize("k", [1, 70])
@pytest.mark.parametrize("block", [64, 1000, 1 << 16])
def test_exact_topk_in_blocks_equals_pytorch(block: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "BLOCK", block)
    hidden, weight, bias = a_layer()
    expected = torch.nn.functional.linear(hidden, weight, bias).topk(k)
    values, rows = exact_topk(hidden, weight, bias, k)
    assert torch.equal(rows, expected.indices)
    torch.testing.assert_close(values, expected.values)


@pytest.mark.parametrize("block", [64, 1 << 16])
def test_exact_loss_in_blocks_equals_pytorch(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "BLOCK", block)
    hidden, weight, bias = a_layer()
    labels = torch.randint(0, 3000, (200, 3), generator=torch.Generator().manual_seed(2))
    labels[:50, 1:] = -1
    labels[50:60] = -1
    logs = torch.nn.functional.linear(hidden, weight, bias).log_softmax(1)
    there = labels >= 0
    each = (logs.gather(1, labels.clamp(min=0)) * there).sum(1) / there.sum(1).clamp(min=1)
    torch.testing.assert_close(exact_loss(hidden, weight, bias, labels), -each.sum() / 190)
    none = torch.full((200, 3), -1)
    assert float(exact_loss(hidden, weight, bias, none)) == 0.0


def test_searching_all_clusters_is_exact() -> None:
    hidden, weight, bias = a_layer()
    index = Index(weight.numpy(), bias.numpy())
    values, rows = index.topk(hidden.numpy(), 5, probes=1 << 20)
    exact_values, exact_rows = exact_topk(hidden, weight, bias, 5)
    assert rows.tolist() == exact_rows.tolist()
    assert values == pytest.approx(exact_values.numpy(), abs=1e-4)


def test_rows_equal_in_8_bits_are_scored_exactly() -> None:
    """The largest logit is found among four rows that are equal in 8 bits."""
    chance = np.random.default_rng(1)
    hidden = chance.standard_normal((50, 16)).astype(np.float32)
    hidden /= np.linalg.norm(hidden, axis=1, keepdims=True)
    weight = np.repeat(hidden, 4, 0)
    weight += np.float32(1e-4) * chance.standard_normal(weight.shape).astype(np.float32)
    bias = np.zeros(len(weight), np.float32)
    values, rows = Index(weight, bias).topk(hidden, 1, probes=1 << 20)
    logits = hidden @ weight.T
    assert (rows[:, 0] == logits.argmax(1)).all()
    assert values[:, 0] == pytest.approx(logits.max(1), abs=1e-5)


@pytest.mark.parametrize("in_bytes", [True, False])
def test_clusters_have_high_recall_with_both_kinds_of_products(
    in_bytes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oddlot.sparse.products.has_bytes", lambda: in_bytes)
    hidden, weight, bias = (one.numpy() for one in a_layer())
    index = Index(weight, bias)
    assert index.clustering.product.in_bytes is in_bytes
    all_scored = exact_topk(*a_layer(), 5)[1].numpy()
    found = index.topk(hidden, 5, 30)[1]
    shares = [len(set(some) & set(best)) / 5 for some, best in zip(found, all_scored, strict=True)]
    assert np.mean(shares) > 0.9


@pytest.mark.parametrize("in_bytes", [True, False])
def test_concurrent_queries_give_the_same_results(in_bytes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query gives the same results if another query runs between its scoring and its choice of clusters."""
    monkeypatch.setattr("oddlot.sparse.products.has_bytes", lambda: in_bytes)
    hidden, weight, bias = (one.numpy() for one in a_layer())
    index = Index(weight, bias)
    alone = index.topk(hidden, 5, 4)[1].tolist()
    share, others = Crew.share, [-hidden]

    def interrupted(crew: Crew, *given: Any) -> None:
        if others and given[0] is clusters.best_of_clusters:
            index.topk(others.pop(), 5, 4)
        share(crew, *given)

    monkeypatch.setattr(Crew, "share", interrupted)
    assert index.topk(hidden, 5, 4)[1].tolist() == alone
    assert not others


def test_query_works_if_another_thread_takes_the_last_buffer() -> None:
    """The other thread takes the buffer between the check and the pop."""

    class Taken(list[NDArray[Any]]):
        def __bool__(self) -> bool:
            return True

    hidden, weight, bias = (one.numpy() for one in a_layer())
    index = Index(weight, bias)
    alone = index.topk(hidden, 5, 4)[1].tolist()
    index.clustering.product.free = Taken()
    assert index.topk(hidden, 5, 4)[1].tolist() == alone


def a_search(examples: int = 512) -> tuple[Search, NDArray[np.float32]]:
    """Return a search that was shown `examples` distinct examples, and the examples."""
    hidden, weight, bias = (one.numpy() for one in a_layer())
    chance = np.random.default_rng(1)
    shown = hidden[chance.integers(len(hidden), size=examples)]
    shown = shown + np.float32(0.1) * chance.standard_normal(shown.shape).astype(np.float32)
    search = Search(weight, bias)
    search.show(shown)
    return search, shown


def test_all_rows_are_scored_before_512_examples_are_known() -> None:
    """All rows are scored before 512 examples are known, because a recall on fewer examples could be far off."""
    search, shown = a_search(511)
    assert search.probes_for(5, 0.9) == (0, 1.0)
    assert "index" not in vars(search)
    search.show(shown)
    assert search.missing == 1, "the same ones again tell nothing new"
    search.show(-shown[:1])
    assert search.probes_for(5, 0.9)[0] >= FIRST_PROBES
    search.show(2 * shown)
    assert len(search.shown) == 512


def test_concurrent_threads_measure_the_recall_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recall is measured once, on 512 examples, although each thread shows more of them at that time."""
    search, shown = a_search(511)
    counted, measured = list[int](), Search._measured

    def watched(self: Search, k: int, recall: float) -> tuple[int, float]:
        counted.append(len(self.shown))
        return measured(self, k, recall)

    monkeypatch.setattr(Search, "_measured", watched)
    together = Barrier(8)

    def ask(number: int) -> tuple[int, float]:
        together.wait(60)
        search.show(shown[number:] + np.float32(number + 1))
        return search.probes_for(5, 0.9)

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(ask, range(8)))
    assert len(answers) == 1
    assert counted == [512]


@pytest.mark.parametrize("k", [1, 5])
def test_requested_recall_is_reached_with_few_rows(k: int) -> None:
    search, shown = a_search()
    probes, has = search.probes_for(k, 0.97)
    exact = exact_topk(torch.from_numpy(shown), *a_layer()[1:], k)[1].numpy()

    def share(probes: int) -> float:
        found = search.index.topk(shown, k, probes)[1]
        return float(np.mean([len({*some} & {*best}) / k for some, best in zip(found, exact, strict=True)]))

    assert has == pytest.approx(share(probes))
    assert has >= 0.97
    assert FIRST_PROBES < probes <= len(search.index.clustering.means) / 16
    assert share(probes - 1) < 0.97


def test_all_rows_are_scored_for_large_k() -> None:
    search, _ = a_search()
    assert search.probes_for(MAX_WANTED + 1, 0.1) == (0, 1.0)
    assert "index" not in vars(search)


def test_missing_rows_of_small_clusters_are_minus_one() -> None:
    hidden, weight, bias = (one.numpy() for one in a_layer())
    values, rows = Index(weight, bias).topk(hidden, 500, probes=1)
    assert (rows[:, 0] >= 0).all()
    assert (rows[:, -1] == -1).all()
    assert np.isneginf(values[:, -1]).all()


@pytest.mark.parametrize("rows", [1, 7, 9, 20])
def test_index_of_few_rows_finds_the_best_row(rows: int) -> None:
    weight = np.ones((rows, 4), np.float32)
    index = Index(weight, np.arange(rows, dtype=np.float32))
    assert index.topk(np.ones((2, 4), np.float32), 1, 1 << 10)[1].tolist() == [[rows - 1]] * 2


def test_recall_is_measured_once_for_each_k(monkeypatch: pytest.MonkeyPatch) -> None:
    search, shown = a_search()
    first, counted, topk = search.probes_for(5, 0.9), list[int](), Index.topk

    def watched(self: Index, hidden: NDArray[np.float32], k: int, probes: int) -> Any:
        counted.append(k)
        return topk(self, hidden, k, probes)

    monkeypatch.setattr(Index, "topk", watched)
    search.show(shown)
    assert search.probes_for(5, 0.9) == first
    assert not counted
    search.probes_for(3, 0.9)
    assert set(counted) == {3}, "for other labels it is another number"


def test_all_rows_are_scored_if_many_clusters_are_needed() -> None:
    chance = np.random.default_rng(1)
    weight, hidden = (chance.standard_normal((count, 16)).astype(np.float32) for count in (3000, 512))
    search = Search(weight, np.zeros(3000, np.float32))
    search.show(hidden)
    assert search.probes_for(5, 1.0) == (0, 1.0)
