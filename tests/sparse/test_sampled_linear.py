"""SampledLinear equals PyTorch with all rows, and gives unbiased estimates with a few rows."""

import pickle
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from oddlot.sparse import (
    LSH,
    SGD,
    Adam,
    Clusters,
    Dense,
    Mixed,
    RowAdagrad,
    SampledLinear,
    Shared,
    SparseInputLinear,
    Uniform,
    Unigram,
)
from oddlot.sparse.active_set import Labels
from oddlot.sparse.optimizers import bytes_of_row
from oddlot.sparse.sampler import Refresh, Sampler
from oddlot.sparse.topk import Index, exact_topk
from tests.sparse.layers import (
    BATCH,
    COLUMNS,
    ROWS,
    SEVERAL,
    a_layer,
    close,
    dense_loss,
    gradient,
    some_hidden,
    threads,
    trained,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_rows_equal_pytorch_cross_entropy(count: int) -> None:
    """The labels include several per example, a duplicate, and an example without labels."""
    with threads(count):
        layer, hidden, plain = a_layer(), some_hidden(), some_hidden()
        loss = layer(hidden, SEVERAL)
        loss.backward()
    expected = dense_loss(plain, layer.weight, layer.bias, SEVERAL)
    close(loss, expected)
    weight, bias, by_hidden = torch.autograd.grad(expected, (layer.weight, layer.bias, plain))
    for own, its in ((hidden, by_hidden), (layer.weight, weight), (layer.bias, bias)):
        close(gradient(own), its)


def test_hidden_vectors_changed_in_place_raise() -> None:
    net, layer = nn.Linear(4, COLUMNS), a_layer(optimizer=Adam())
    hidden = net(torch.ones(BATCH, 4)) * 2
    loss, before = layer(hidden, SEVERAL), layer.weight.detach().clone()
    hidden += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert torch.equal(layer.weight, before)


def test_seed_none_uses_the_pytorch_random_state() -> None:
    """PyTorch's random state determines drawn rows, hash functions and initial weights."""
    losses, planes = list[Tensor](), list[Tensor]()
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        sampler = LSH(digits=4, tables=9, found=20, by_chance=1)
        layer = SampledLinear(COLUMNS, 500, sampler, None, seed=None)
        losses.append(layer(some_hidden(), SEVERAL))
        planes.append(sampler.planes)
        assert layer(some_hidden(), SEVERAL) != losses[-1]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(planes[0], planes[1])
    assert not torch.equal(planes[0], planes[2])


def estimates(sampler: Sampler) -> NDArray[np.float64]:
    """Return 1,000 random estimates of the sum over all rows in the softmax, relative to the true sum."""
    layer, hidden = a_layer(sampler), some_hidden(1, seed=9).detach()
    examples = 1 if isinstance(sampler, Shared) else 10
    labels = Labels.of([4] * examples, ROWS)
    layer(some_hidden(), SEVERAL)  # labels have different frequencies
    if hasattr(sampler, "refresh"):
        sampler.refresh.forget()  # forces an update of the label counts
    full = torch.logsumexp(layer(hidden)[0], 0)
    own = layer(hidden)[0, 4]
    losses, same = list[NDArray[np.float64]](), np.repeat(hidden.numpy(), examples, 0)
    for _ in range(1000 // examples):
        layer.batches += 1
        losses.append(layer._begin(same, labels).active.losses.copy())
    return np.exp(np.concatenate(losses) + float(own.detach() - full.detach()))


@pytest.mark.parametrize(
    "sampler",
    [
        Uniform(8),
        Unigram(8),
        Shared(8),
        Clusters(2, 3, 9, 5, group=1),
        Clusters(2, 3, 9, 5, frequency=0.0, group=1),
        LSH(digits=4, tables=3, found=9, by_chance=5),
        Mixed([LSH(digits=4, tables=3, found=5, by_chance=0), Clusters(2, 2, 5, 5, group=1)]),
        Mixed([Clusters(2, 3, 9, 0), Uniform(5)]),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_estimated_softmax_sum_is_unbiased(sampler: Sampler) -> None:
    found = estimates(sampler)
    error = found.std() / len(found) ** 0.5
    assert found.std() > 0.01, "it is by chance"
    assert abs(found.mean() - 1) < 4 * error


def fresh_samplers() -> list[Sampler]:
    dwta = LSH("dwta", tables=5, found=20, by_chance=10, redraw_every=2)
    for one in (
        lsh := LSH(tables=5, found=20, by_chance=10, redraw_every=2),
        dwta,
        ours := Clusters(4, 3, 30, 10),
    ):
        one.refresh.every = 3
    both = Mixed(
        [Clusters(4, 3, 30, 0, refresh=Refresh(3)), LSH(tables=5, found=20, by_chance=10, refresh=Refresh(2))]
    )
    return [Uniform(20), Shared(30), ours, lsh, dwta, Unigram(20, refresh=Refresh(3)), both]


@pytest.mark.parametrize("which", range(7))
def test_training_is_bitwise_equal_on_any_number_of_threads(which: int) -> None:
    one, *others = (trained(fresh_samplers()[which], threads) for threads in (2, 2, 1, 3))
    for other in others:
        assert torch.equal(one.weight, other.weight)
        assert torch.equal(one.bias, other.bias)


def test_seed_determines_the_random_rows() -> None:
    layers = [SampledLinear(COLUMNS, 500, Uniform(20), SGD(), seed) for seed in (5, 8, 5)]
    weight = layers[0].weight.detach().clone()
    moved = []
    for layer in layers:
        with torch.no_grad():
            layer.weight.copy_(weight)
        layer(some_hidden(), SEVERAL).backward()
        moved.append((layer.weight != weight).any(1).tolist())
    assert moved[0] == moved[2] != moved[1]


def test_nan_loss_changes_no_weights() -> None:
    layer = a_layer(optimizer=Adam())
    before, hidden = layer.weight.detach().clone(), some_hidden()
    with torch.no_grad():
        hidden[1, 2] = torch.nan
    loss = layer(hidden, SEVERAL)
    loss.backward()
    assert loss.isnan()
    assert gradient(hidden).isnan().all(), "so that whoever looks at gradients sees it"
    assert torch.equal(layer.weight, before)


def test_two_losses_before_backward_have_correct_gradients() -> None:
    layer, one, other = a_layer(), some_hidden(seed=1), some_hidden(seed=2)
    (layer(one, SEVERAL) + 2 * layer(other, SEVERAL)).backward()
    plain = some_hidden(seed=2)
    dense_loss(plain, layer.weight.detach(), layer.bias.detach(), SEVERAL).backward()  # type: ignore[no-untyped-call]  # PyTorch's
    close(gradient(other), 2 * gradient(plain))


def test_sparse_gradients_work_with_sparse_adam() -> None:
    layer = a_layer(Uniform(4))
    optimizer = torch.optim.SparseAdam(layer.parameters(), lr=0.1)
    before = layer.weight.detach().clone()
    layer(some_hidden(), SEVERAL).backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad._nnz() < ROWS
    optimizer.step()  # type: ignore[no-untyped-call]  # PyTorch's
    changed = (layer.weight != before).any(1)
    assert set(changed.nonzero()[:, 0].tolist()) == set(layer.weight.grad.coalesce().indices()[0].tolist())


def test_layers_stay_on_the_cpu_with_another_default_device() -> None:
    hidden = some_hidden().detach()
    with torch.device("meta"):
        layer, features = SampledLinear(COLUMNS, ROWS, Clusters(2), SGD()), SparseInputLinear(5, 4)
        loss = layer(hidden.clone().requires_grad_(), SEVERAL)
        loss.backward()
        best = exact_topk(hidden, layer.weight.detach(), layer.bias.detach(), 2)[1]
        index = Index(layer.weight.detach().numpy(), layer.bias.detach().numpy())
        assert index.topk(hidden.numpy(), 2, 100)[1].tolist() == best.tolist()
    assert {one.device.type for one in (loss, *layer.parameters(), *features.parameters())} == {"cpu"}


def test_bf16_network_below_trains() -> None:
    net, layer = nn.Linear(8, COLUMNS).to(torch.bfloat16), a_layer(optimizer=Adam(lr=0.05))
    inputs = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        loss = layer(net(inputs), SEVERAL)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert loss.dtype == torch.bfloat16
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    "sampler", [Clusters(), LSH(), LSH("dwta"), Uniform(20)], ids=lambda one: type(one).__name__
)
def test_products_are_in_float32_under_autocast(sampler: Sampler) -> None:
    layer, plain = (SampledLinear(COLUMNS, 500, deepcopy(sampler)) for _ in range(2))
    hidden = some_hidden()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = layer(hidden, SEVERAL)
    loss.backward()
    assert torch.equal(loss, plain(hidden, SEVERAL))


def test_overflowing_marks_are_reset() -> None:
    """No row is taken twice, even if old marks have the values of new marks."""
    layer, plain = (SampledLinear(COLUMNS, 500, Uniform(100), None) for _ in range(2))
    for _ in range(2):
        layer(some_hidden(), SEVERAL)
    layer._marks.next = np.iinfo(np.int32).max - BATCH + 1
    layer._marks.seen[:] = 1
    layer.batches = 0
    assert torch.equal(layer(some_hidden(), SEVERAL), plain(some_hidden(), SEVERAL))
    assert layer._marks.next == 1 + BATCH


def test_default_dtype_has_no_effect() -> None:
    hidden = some_hidden()
    torch.set_default_dtype(torch.float64)
    try:
        layer = SampledLinear(COLUMNS, 500)
        found = layer(hidden, SEVERAL)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, SampledLinear(COLUMNS, 500)(hidden, SEVERAL))


def test_memory_per_row_includes_optimizer_state() -> None:
    kinds = None, SGD(), RowAdagrad(), Adam(), Adam(moments="bf16")
    assert [bytes_of_row(one, 128) for one in kinds] == [512, 512, 516, 1536, 1024]


def test_dense_sampler_equals_softmax() -> None:
    layer, hidden = a_layer(Dense()), some_hidden()
    close(layer(hidden, SEVERAL), dense_loss(hidden, layer.weight, layer.bias, SEVERAL))
    assert (layer.active_rows, layer.chance_share) == (ROWS, 0.0)


def test_active_rows_and_chance_share_are_reported() -> None:
    layer = SampledLinear(COLUMNS, 500, Uniform(20), None)
    layer(some_hidden(4), torch.tensor([[3, 7], [4, -1], [9, 2], [8, 8]]))
    assert layer.active_rows == 20 + 6 / 4
    assert layer.chance_share == pytest.approx(80 / 86)
    layer = SampledLinear(COLUMNS, 500, Clusters(by_chance=0), None)
    layer(some_hidden(4), torch.tensor([3, 4, 9, 8]))
    assert layer.chance_share == 0
    layer(some_hidden(0), torch.tensor([], dtype=torch.int64))
    assert (layer.active_rows, layer.chance_share) == (0, 0)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_thread_count_may_change_between_loss_and_backward(before: int, after: int) -> None:
    ends = list[Tensor]()
    for at_last in (before, after):
        layer, hidden = SampledLinear(COLUMNS, 500, Uniform(50), SGD(lr=0.1)), some_hidden()
        with threads(before):
            loss = layer(hidden, SEVERAL)
        with threads(at_last):
            loss.backward()
        ends.append(layer.weight.detach())
    assert torch.equal(*ends)


def test_non_finite_gradient_changes_no_weights() -> None:
    layer = SampledLinear(COLUMNS, 500, Uniform(50))
    before = layer.weight.detach().clone()
    (layer(some_hidden(), SEVERAL) * torch.inf).backward()
    assert torch.equal(layer.weight, before)


def test_copied_and_pickled_layers_work() -> None:
    layer: Any = SampledLinear(COLUMNS, 500, Clusters(), seed=1)
    layer(some_hidden(), SEVERAL).backward()
    for twin in (deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert twin.sampler is not layer.sampler
        twin.load_state_dict(layer.state_dict())
        assert twin.sampler.refresh.next == 0.0, "its own one has forgotten"
        assert layer.sampler.refresh.next == 51.0
        again = deepcopy(twin)
        assert torch.equal(twin(some_hidden(), SEVERAL), again(some_hidden(), SEVERAL))


def test_each_layer_has_its_own_optimizer() -> None:
    first, second = SampledLinear(3, 5), SampledLinear(3, 7)
    assert isinstance(first.optimizer, Adam)
    first.optimizer.lr = 0.5
    assert isinstance(second.optimizer, Adam)
    assert second.optimizer.lr == Adam().lr
