"""Trimmed means, medians and Krum, compared with plain NumPy, alone and in the store."""

from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from oddlot.core.optimizers import SGD
from oddlot.core.support.errors import InvalidValue
from oddlot.core.tasks import Facts, Kind
from oddlot.model import trimmed_means
from oddlot.model.combine import Combine, Section
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.payload import Payload
from oddlot.model.robust_combine import Krum, Median, TrimmedMean
from oddlot.model.sorting_network import trimming_network
from oddlot.model.weight_store import WeightStore
from tests.transcripts import warns

Numbers = NDArray[np.float64]


@pytest.mark.parametrize("count", range(1, 11))
def test_network_moves_the_smallest_and_largest_values_to_the_ends(count: int) -> None:
    """By the 0-1 principle (Knuth, volume 3, 5.3.4), columns of zeros and ones are sufficient."""
    for trim, bits in product(range((count - 1) // 2 + 1), product((0, 1), repeat=count)):
        column, ordered = list(bits), sorted(bits)
        for low, high in trimming_network(count, trim):
            column[low], column[high] = sorted((column[low], column[high]))
        assert sorted(column[:trim]) == ordered[:trim]
        assert sorted(column[count - trim :]) == ordered[count - trim :]


@pytest.fixture(params=["sorted", "tiles", "fused"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, ways in (("LARGE_NUMBERS", {"tiles", "fused"}), ("FUSED_NUMBERS", {"fused"})):
        monkeypatch.setattr(trimmed_means, name, 1 if request.param in ways else 1 << 40)
    return str(request.param)


def rows(count: int, numbers: int, dtype: torch.dtype, ties: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    values = torch.randn(count, numbers, generator=generator)
    return list((values.round() if ties else values).to(dtype))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("count", "trim"), [(2, 0), (3, 1), (4, 1), (5, 2), (8, 2), (9, 4)])
def test_trimmed_mean_equals_sorting(count: int, trim: int, ties: bool, dtype: torch.dtype) -> None:
    values, out = rows(count, 1003, dtype, ties), torch.empty(1003, dtype=dtype)
    counts = trimmed_means.trimmed_mean(values, trim, out)
    columns: Numbers = torch.stack(values).double().numpy()
    kept = np.sort(columns, axis=0)[trim : count - trim]
    near = 1e-6 if dtype in {torch.float32, torch.float64} else 0.01
    np.testing.assert_allclose(out.double().numpy(), kept.mean(axis=0), rtol=near, atol=near)
    trimmed = (columns < kept[0]) | (columns > kept[-1])
    np.testing.assert_array_equal(counts.numpy(), trimmed.sum(axis=1))


def combined(rule: Combine, *sections: Tensor) -> tuple[list[float], list[Tensor]]:
    """Return the shares left out and the results. Each section is [updates, numbers]."""
    outs = [torch.empty_like(section[0]) for section in sections]
    pairs = zip(sections, outs, strict=True)
    return list(rule.combine([Section(list(values), out) for values, out in pairs])), outs


@pytest.mark.parametrize(
    ("trim", "updates", "trimmed"),
    [(0.2, 5, 1), (0.2, 4, 1), (0.2, 6, 2), (0.2, 15, 3), (0.1, 30, 3), (2, 8, 2), (2, 4, 1), (0.2, 2, 0)],
)
def test_share_to_trim_is_rounded_up_and_keeps_the_middle(trim: float, updates: int, trimmed: int) -> None:
    assert TrimmedMean(trim).trimmed(updates) == trimmed


@pytest.mark.parametrize("trim", [0, 0.5, -1, 1.5, True, "0.2"])
def test_invalid_trim_is_rejected(trim: float) -> None:
    with pytest.raises(InvalidValue):
        TrimmedMean(trim)


def test_median_of_even_and_odd_counts() -> None:
    values = torch.tensor([[1.0], [9.0], [3.0], [100.0]])
    assert combined(Median(), values)[1][0].item() == 6.0
    assert combined(Median(), values[:3])[1][0].item() == 3.0


def plain_krum(columns: Numbers, faulty: int, average: int) -> tuple[list[int], Numbers]:
    """Return the chosen updates and their mean, by the definition in the paper."""
    count = len(columns)
    distances = ((columns[:, None] - columns[None]) ** 2).sum(axis=-1)
    scores = [np.sort(np.delete(distances[i], i))[: count - faulty - 2].sum() for i in range(count)]
    best = [int(i) for i in np.argsort(scores)[:average]]
    return best, columns[best].mean(axis=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("count", "faulty", "average"), [(5, 1, 1), (7, 2, 3), (8, 1, 1), (9, 2, 4)])
def test_krum_chooses_as_the_paper(count: int, faulty: int, average: int, dtype: torch.dtype) -> None:
    """Distances are sums over all sections, and a common offset does not change them."""
    generator = torch.Generator().manual_seed(count)
    first = torch.randn(count, 70_001, generator=generator).to(dtype)
    second = (1000 + torch.randn(count, 11, generator=generator).double()).float()
    first[2] *= -100
    best, mean = plain_krum(torch.cat([first.double(), second.double()], 1).numpy(), faulty, average)
    left_out, outs = combined(Krum(faulty, average), first, second)
    assert left_out == [0.0 if index in best else 1.0 for index in range(count)]
    near = 1e-5 if dtype != torch.bfloat16 else 0.02
    np.testing.assert_allclose(torch.cat([out.double() for out in outs]).numpy(), mean, rtol=near, atol=near)


def test_krum_counts_only_the_closest_updates() -> None:
    """With one more neighbor, -5 would count, and 0 would have the smallest sum."""
    values = torch.tensor([[0.0], [0.1], [0.2], [-5.0], [1000.0]])
    assert combined(Krum(), values)[0] == [1.0, 0.0, 1.0, 1.0, 1.0]


def test_krum_with_too_few_updates_is_the_median() -> None:
    values = torch.randn(4, 9)
    assert torch.equal(combined(Krum(), values)[1][0], combined(Median(), values)[1][0])
    assert (Krum().needs, Krum(2).needs) == (5, 7)


def test_multi_krum_averages_no_more_updates_than_the_proof_allows() -> None:
    left_out, (out,) = combined(Krum(average=9), torch.tensor([[0.0], [0.1], [0.2], [0.3], [1000.0]]))
    assert (sum(left_out), left_out[4]) == (3.0, 1.0)
    assert float(out) < 0.3


# --- in the store --------------------------------------------------------------------------------


def store_of(rule: Combine | None, weight_decay: float = 0.0, **options: object) -> WeightStore:
    model, rate = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), SGD(1.0, weight_decay=weight_decay)
    return WeightStore(FlatBuffer.empty(Layout.from_module(model)), rate, combine=rule, **options)  # type: ignore[arg-type]


def receive(
    store: WeightStore, values: list[float], kind: Kind, missing: tuple[int, ...] = ()
) -> dict[str, float]:
    """Put an update with each value into the inbox. Its running mean is the value, its counter 10 times the value."""
    for number, value in enumerate(values):
        flat = FlatBuffer.empty(store.layout)
        for name in ("0.weight", "0.bias", "1.running_mean"):
            flat.view(name).fill_(value)
        flat.view("1.num_batches_tracked").fill_(round(10 * value))
        flat.without_gradient.fill_(number in missing)
        store.receive(Facts(f"a:{number}", "a", store.version, 1, kind), Payload(kind, flat, None))
    return {f"a:{number}": 1 / len(values) for number in range(len(values))}


@pytest.mark.parametrize(
    ("rule", "value"),
    [(TrimmedMean(), 2.0), (Median(), 2.0), (Krum(), 2.0), (Krum(average=2), 2.0)],
)
def test_step_uses_the_combined_update(rule: Combine, value: float) -> None:
    store = store_of(rule)
    change = store.step(receive(store, [1.0, 2.0, 2.0, 3.0, -100.0], "gradient"), measure=1)
    assert store.weights.view("0.weight").flatten().tolist() == pytest.approx([-value] * 6, abs=0.4)
    assert store.weights.view("1.running_mean").tolist() == [2.0, 2.0]
    assert store.weights.view("1.num_batches_tracked").item() == 20
    assert not store.inbox
    assert change is not None
    assert change.left_out is not None
    assert change.left_out["a:4"] == max(change.left_out.values()) > 0
    assert change.norm is not None, "the measurement of the merge is kept"


def test_blend_moves_towards_the_combined_weights() -> None:
    store = store_of(Median())
    shares = receive(store, [1.0, 2.5, 300.0], "weights")
    change = store.blend({name: share / 2 for name, share in shares.items()})
    assert store.weights.view("0.bias").tolist() == pytest.approx([1.25, 1.25])
    assert store.weights.view("1.running_mean").tolist() == pytest.approx([1.25, 1.25])
    assert change is not None
    assert change.left_out is not None
    assert change.norm is None


def test_clipping_acts_on_the_combined_gradient() -> None:
    store = store_of(Median(), max_grad_norm=1.0)
    store.step(receive(store, [3.0, 4.0, 1e6], "gradient"))
    norm = sum(float(store.weights.view(name).square().sum()) for name in ("0.weight", "0.bias")) ** 0.5
    assert norm == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("kind", ["gradient", "weights"])
@pytest.mark.parametrize("held", [False, True])
def test_merge_of_fewer_than_three_updates_changes_nothing(kind: Kind, held: bool) -> None:
    """Nothing tells which of two updates is hostile. The 100th such merge in succession warns."""
    store = store_of(Median())
    store.weights.view("0.bias").fill_(0.5)
    before, merge = store.weights.memory.clone(), store.step if kind == "gradient" else store.blend
    for number in range(99):
        if held:
            store.acquire(store.version)
        change = merge(receive(store, [2.5] * (1 + number % 2), kind), measure=1)
        assert change is not None
        assert set((change.left_out or {}).values()) == {1.0}
    assert (store.version, torch.equal(store.weights.memory, before)) == (99, True)
    assert not store.inbox
    with warns("merges_too_small"):
        merge(receive(store, [2.5], kind))


def test_parameter_without_a_gradient_in_all_chosen_updates_keeps_its_value() -> None:
    """Only the update that Krum leaves out has a gradient for it. Otherwise weight decay would change it."""
    store = store_of(Krum(average=2), weight_decay=0.5)
    store.weights.view("0.weight").fill_(1.0)
    store.step(receive(store, [0.0, 0.0, 0.0, 0.0, 50.0], "gradient", missing=(0, 1, 2, 3)))
    assert set(store.weights.view("0.weight").flatten().tolist()) == {1.0}


def test_buffers_are_the_lower_median_of_an_even_number() -> None:
    store = store_of(Median())
    store.step(receive(store, [4.0, 1.0, 3.0, 2.0], "gradient"))
    assert store.weights.view("1.running_mean").tolist() == [2.0, 2.0]
    assert store.weights.view("1.num_batches_tracked").item() == 20


@pytest.mark.parametrize("rule", [TrimmedMean(), Median(), Krum(average=3)])
def test_constant_buffers_keep_their_bits(rule: Combine) -> None:
    """Their mean over updates would differ in the last bit, and an infinite range would become NaN."""
    store = store_of(rule)
    store.weights.view("1.running_mean").copy_(torch.tensor([0.1, float("-inf")]))
    shares = receive(store, [1.0, 2.0, 2.0, 3.0, 4.0, 5.0], "gradient")
    for payload in store.inbox.values():
        payload.flat.view("1.running_mean").copy_(store.weights.view("1.running_mean"))
    store.step(shares)
    assert store.weights.view("1.running_mean").tolist() == [torch.tensor(0.1).item(), float("-inf")]
