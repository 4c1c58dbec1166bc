"""LazyAdam with sparse and dense gradients, compared with PyTorch's optimizers."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oddlot.sparse import LazyAdam, SparseInputLinear, threads as pools
from tests.sparse.layers import close, gradient, threads

ROWS, WIDTH, STEPS = 40, 8, 12
SETTINGS: dict[str, Any] = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6}


def steps(make: Callable[[list[Tensor]], torch.optim.Optimizer], sparse: bool) -> nn.Embedding:
    """Return an embedding after some steps, each with a gradient for a few rows."""
    torch.manual_seed(0)
    table, chance = nn.Embedding(ROWS, WIDTH, sparse=sparse), torch.Generator().manual_seed(1)
    optimizer = make([*table.parameters()])
    for _ in range(STEPS):
        rows = torch.randint(ROWS, (4,), generator=chance)
        optimizer.zero_grad()
        table(rows).pow(3).sum().backward()
        optimizer.step()
    return table


def test_rows_with_a_gradient_step_as_in_sparse_adam() -> None:
    own = steps(lambda parameters: LazyAdam(parameters, **SETTINGS), sparse=True)
    like = steps(lambda parameters: torch.optim.SparseAdam(parameters, **SETTINGS), sparse=True)
    assert torch.allclose(own.weight, like.weight, atol=1e-4), "which counts eps otherwise"
    dense = steps(lambda parameters: torch.optim.Adam(parameters, **SETTINGS), sparse=False)
    assert not torch.allclose(own.weight, dense.weight, atol=1e-2), "which moves rows that wait"


def test_duplicate_rows_step_once_with_the_summed_gradient() -> None:
    def stepped(make: Callable[[list[Tensor]], torch.optim.Optimizer]) -> Tensor:
        torch.manual_seed(0)
        table = nn.Embedding(ROWS, WIDTH, sparse=True)
        optimizer = make([*table.parameters()])
        for rows in ([3, 3, 5], [5, 7]):  # gradients accumulate
            table(torch.tensor(rows)).sum().backward()
        optimizer.step()
        weight: Tensor = table.weight
        return weight

    assert torch.allclose(stepped(LazyAdam), stepped(torch.optim.SparseAdam), atol=1e-6)


def test_dense_gradients_step_as_in_adam() -> None:
    own = steps(lambda parameters: LazyAdam(parameters, **SETTINGS), sparse=False)
    like = steps(lambda parameters: torch.optim.Adam(parameters, **SETTINGS), sparse=False)
    assert torch.allclose(own.weight, like.weight, atol=1e-6)


def test_scalars_and_vectors_follow_a_scheduler() -> None:
    """A PyTorch scheduler halves the learning rate after each step."""
    ends = list[list[Tensor]]()
    for kind in (LazyAdam, torch.optim.Adam):
        parameters = [torch.tensor(1.0, requires_grad=True), torch.ones(3, requires_grad=True)]
        optimizer = kind(parameters, lr=0.1)
        fall = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(3):
            optimizer.zero_grad()
            (parameters[0] ** 2 + (parameters[1] ** 2).sum()).backward()  # type: ignore[no-untyped-call]  # PyTorch's
            optimizer.step()
            fall.step()
        ends.append([one.detach() for one in parameters])
    for own, like in zip(*ends, strict=True):
        assert torch.allclose(own, like, atol=1e-6)


def test_optimizer_state_is_saved_and_loaded() -> None:
    table = nn.Embedding(ROWS, WIDTH, sparse=True)
    first, second = LazyAdam(table.parameters()), LazyAdam(table.parameters())
    table(torch.tensor([3])).sum().backward()
    first.step()
    second.load_state_dict(deepcopy(first.state_dict()))
    before = table.weight.detach().clone()
    first.step()
    after, table.weight.data = table.weight.detach().clone(), before
    second.step()
    assert torch.equal(table.weight, after)


def test_small_parameters_step_without_the_thread_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def woken() -> None:
        raise AssertionError("a thread of the pool is asked for")

    monkeypatch.setattr(pools, "_pool", woken)
    bias = torch.ones(128, requires_grad=True)
    bias.grad = torch.ones(128)
    with threads(2):
        LazyAdam([bias], lr=0.5).step()
    assert torch.allclose(bias, torch.full((128,), 0.5))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_large_parameters_step_correctly_on_several_threads(count: int, sparse: bool) -> None:
    chance = torch.Generator().manual_seed(1)
    begin, gradient = (torch.randn(1001, 16, generator=chance) for _ in range(2))
    gradient += gradient.sign()  # makes eps negligible
    rows = torch.randperm(1001, generator=chance)[: 701 if sparse else 1001]
    shape = begin.shape
    like = torch.sparse_coo_tensor(rows[None], gradient[rows], shape, check_invariants=True)
    given = like if sparse else gradient
    ends = []
    for kind in (LazyAdam, torch.optim.SparseAdam if sparse else torch.optim.Adam):
        weight = begin.clone().requires_grad_()
        optimizer = kind([weight], lr=0.1)
        with threads(count):
            for _ in range(2):
                weight.grad = given.clone()
                optimizer.step()
        ends.append(weight.detach())
    assert torch.allclose(ends[0], ends[1], atol=1e-5)


@pytest.mark.parametrize("count", [1, 2])
def test_input_layer_gives_a_sparse_gradient(count: int) -> None:
    """The gradient equals the gradient of the dense product, with rows only for features that occur."""
    layer = SparseInputLinear(ROWS, WIDTH, optimizer=None)
    starts, features = np.array([0, 2, 2, 5]), np.array([1, 7, 7, 3, 1])
    values = np.array([0.5, -1.0, 2.0, 3.0, 1.5], np.float32)
    with threads(count):
        layer(starts, features, values).pow(2).sum().backward()
    dense = torch.zeros(3, ROWS).index_put_(
        (torch.tensor([0, 0, 2, 2, 2]), torch.from_numpy(features)), torch.from_numpy(values), accumulate=True
    )
    weight = layer.weight.detach().clone().requires_grad_()
    (dense @ weight + layer.bias.detach()).pow(2).sum().backward()  # type: ignore[no-untyped-call]  # PyTorch's
    close(gradient(layer.weight), gradient(weight))
    assert layer.weight.grad is not None
    assert layer.weight.grad.coalesce().indices().tolist() == [[1, 3, 7]]


def test_backward_of_a_loss_from_before_a_step_raises() -> None:
    """As with PyTorch's optimizers, the step has overwritten the weights that the gradient needs."""
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer, loss = LazyAdam([weight]), weight.pow(2).sum()
    torch.autograd.backward(loss, retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(loss)
