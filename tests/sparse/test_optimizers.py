"""Optimizer steps on rows, compared with PyTorch's steps on complete matrices."""

from typing import Any

import pytest
import torch
from torch import nn

from oddlot.sparse import SGD, Adam, RowAdagrad, SampledLinear, SparseInputLinear, Uniform
from oddlot.sparse.optimizers import Optimizer
from tests.sparse.layers import SEVERAL, a_layer, close, dense_loss, gradient, some_hidden
from tests.transcripts import raises

pytestmark = pytest.mark.usefixtures("one_thread")


def stepped(optimizer: Optimizer, kind: Any, steps: int = 5, **options: Any) -> None:
    """Compare the layer's own optimizer with PyTorch's on the same losses."""
    layer, plain = a_layer(optimizer=optimizer), a_layer()
    weight, bias = (nn.Parameter(one.detach().clone()) for one in (plain.weight, plain.bias))
    other = kind([weight, bias], **options)
    for step in range(steps):
        layer(some_hidden(seed=step), SEVERAL).backward()
        other.zero_grad()
        dense_loss(some_hidden(seed=step), weight, bias, SEVERAL).backward()  # type: ignore[no-untyped-call]  # PyTorch's
        other.step()
    close(layer.weight, weight)
    close(layer.bias, bias)
    assert layer.weight.grad is None


def test_sgd_and_adam_equal_pytorch() -> None:
    stepped(SGD(lr=0.3), torch.optim.SGD, lr=0.3)
    stepped(Adam(lr=0.02), torch.optim.Adam, lr=0.02)
    stepped(Adam(lr=0.02, decay=True), torch.optim.Adam, lr=0.02)


class _RowAdagrad:
    """Row-wise Adagrad, written as in its formula."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        self.parameters, self.lr = parameters, lr
        self.sums = [torch.zeros(len(one)) for one in parameters]

    def zero_grad(self) -> None:
        for one in self.parameters:
            one.grad = None

    def step(self) -> None:
        for which, one in enumerate(self.parameters):
            assert one.grad is not None
            self.sums[which] += one.grad.reshape(len(one), -1).square().mean(1)
            step = self.lr / (self.sums[which].sqrt() + 1e-8)
            one.data -= (step[:, None] if one.ndim == 2 else step) * one.grad


def test_row_adagrad_follows_its_formula() -> None:
    stepped(RowAdagrad(lr=0.1), _RowAdagrad, lr=0.1)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.99, 0.99), (0.0, 0.9)])
def test_delayed_rows_equal_dense_adam(betas: tuple[float, float]) -> None:
    """Each step has gradients for only a few rows. The decaying moments of other rows keep moving them."""
    rows, hidden = 50, some_hidden(2)
    layer = a_layer(Uniform(3), Adam(lr=0.01, betas=betas, decay=True), rows)
    twin = a_layer(Uniform(3), None, rows)
    dense = torch.optim.Adam(twin.parameters(), lr=0.01, betas=betas)
    for step in range(60):
        labels = torch.tensor([step % rows, (step * 7) % rows])
        for one in (layer, twin):
            one.batches = step  # draws the same random rows
            one(hidden.detach(), labels).backward()
        for parameter in twin.parameters():
            parameter.grad = gradient(parameter)
        dense.step()
        dense.zero_grad()
        if step < 20:  # later, rows differ because of eps and rounding
            touched = torch.from_numpy(layer._touched == step + 1)
            close(layer.weight[touched], twin.weight[touched], 2e-4)
        if step == 12:  # logits also include the delayed steps of other rows
            close(layer(hidden), twin(hidden), 5e-3)
        if step == 19:
            close(layer.state_dict()["weight"], twin.weight, 5e-4)


def test_long_delay_of_a_row_equals_dense_adam() -> None:
    """The first moment decays slowly, and 1,000 steps follow the row's only gradient."""
    layer = a_layer(Uniform(1), Adam(lr=0.01, betas=(0.99, 0.9999), decay=True), 2)
    twin = nn.Parameter(layer.weight.detach().clone())
    dense = torch.optim.Adam([twin], lr=0.01, betas=(0.99, 0.9999))
    hidden, bias, label = some_hidden(1).detach(), layer.bias.detach().clone(), torch.tensor([0])
    layer(hidden, label).backward()
    nn.functional.cross_entropy(hidden @ twin.T + bias, label).backward()  # type: ignore[no-untyped-call]  # PyTorch's
    dense.step()
    twin.grad = torch.zeros_like(twin)
    for _ in range(1000):
        dense.step()
    layer.step += 1000
    close(layer.state_dict()["weight"], twin, 2e-3)
    assert (twin - a_layer(Uniform(1), None, 2).weight).abs().min() > 0.2, "it has moved far"


def test_loaded_weights_have_no_delayed_steps() -> None:
    layer, other = (a_layer(Uniform(3), Adam(lr=0.05, decay=True), 50) for _ in range(2))
    for step in range(5):
        layer(some_hidden(), SEVERAL + step).backward()
    with torch.no_grad():
        other.weight.normal_(generator=torch.Generator().manual_seed(5))
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer.state_dict()["weight"], other.weight)


def test_evaluation_between_loss_and_backward_changes_nothing() -> None:
    """A loss without a backward pass has no effect, either."""
    layers = [a_layer(Uniform(3), Adam(lr=0.05, decay=True), 50) for _ in range(2)]
    for step in range(4):
        for which, layer in enumerate(layers):
            layer.batches = 2 * step
            loss = layer(hidden := some_hidden(seed=step), SEVERAL)
            if which:
                layer.state_dict()
                layer(hidden.detach())
                layer(hidden.detach(), SEVERAL + 1)
            loss.backward()
    close(layers[0].state_dict()["weight"], layers[1].state_dict()["weight"], 1e-4)


def test_two_open_losses_step_as_dense_adam() -> None:
    """At the second backward pass, rows that are only in the second loss have waited one step."""
    layer = a_layer(Uniform(3), Adam(lr=0.05, decay=True), 50)
    twin = a_layer(Uniform(3), None, 50)
    dense = torch.optim.Adam(twin.parameters(), lr=0.05)
    for step in range(4):
        batches = [
            (some_hidden(2, seed=10 * step + i).detach(), torch.tensor([3 * step + i, 7])) for i in range(2)
        ]
        losses = [[one(*batch) for batch in batches] for one in (layer, twin)]
        for mine, its in zip(*losses, strict=True):
            mine.backward()
            dense.zero_grad()
            its.backward()
            for parameter in twin.parameters():
                parameter.grad = gradient(parameter)
            dense.step()
    close(layer.state_dict()["weight"], twin.weight, 2e-3)


def test_optimizer_can_be_replaced() -> None:
    """An optimizer of the same type keeps the state. One of another type starts with new state."""
    layer = a_layer(optimizer=Adam(lr=0.1))
    layer(some_hidden(), SEVERAL).backward()
    kept = layer._state.first
    layer.optimizer = Adam(lr=0.01)
    assert layer._state.first is kept
    assert layer.step == 1
    for optimizer in (SGD(0.1), Adam(moments="bf16"), Adam(decay=True), RowAdagrad(), Adam()):
        layer.optimizer = optimizer
        assert layer.step == 0
        for _ in range(3):
            layer(some_hidden(), SEVERAL).backward()
        assert layer.weight.isfinite().all()
    layer.optimizer = None
    layer(some_hidden(), SEVERAL).backward()
    assert layer.weight.grad is not None
    sparse = SparseInputLinear(10, 4, SGD(0.1))
    sparse.optimizer = Adam(0.1)
    sparse([0, 2], [3, 9], [1.0, 2.0]).sum().backward()
    assert sparse.weight.isfinite().all()
    assert sparse._state.first[[3, 9]].any()


@pytest.mark.parametrize("optimizer", [Adam(lr=0.1), None])
def test_frozen_weights_are_unchanged(optimizer: Optimizer | None) -> None:
    layer = a_layer(optimizer=optimizer).requires_grad_(False)
    twin, before, biases = a_layer(), layer.weight.clone(), layer.bias.clone()
    mine, its = some_hidden(), some_hidden()
    layer(mine, SEVERAL).backward()
    twin(its, SEVERAL).backward()
    assert torch.equal(layer.weight, before)
    assert torch.equal(layer.bias, biases)
    assert layer.weight.grad is None
    close(gradient(mine), gradient(its))
    sparse = SparseInputLinear(10, 4, optimizer)
    sparse.weight.requires_grad_(False)
    before = sparse.weight.clone()
    sparse([0, 2], [3, 9], [1.0, 2.0]).sum().backward()
    assert torch.equal(sparse.weight, before)
    assert sparse.bias.grad is not None


def test_delayed_rows_are_updated_before_an_optimizer_change() -> None:
    layers = [a_layer(Uniform(3), Adam(lr=0.05, decay=True), 50) for _ in range(2)]
    for layer, asked in zip(layers, (True, False), strict=True):
        for step in range(4):
            layer(some_hidden(), SEVERAL + step).backward()
        if asked:
            layer.state_dict()
        layer.optimizer = SGD(0.1)
    assert torch.equal(layers[0].weight, layers[1].weight)


def test_changed_betas_change_the_bias_correction() -> None:
    layer = a_layer(optimizer=Adam(decay=True))
    layer.optimizer = Adam(betas=(0.8, 0.9), decay=True)
    assert layer._corrections == pytest.approx(Adam(betas=(0.8, 0.9)).corrections())


def test_freezing_only_weight_or_bias_raises_with_an_optimizer() -> None:
    layer = a_layer(optimizer=Adam())
    layer.bias.requires_grad_(False)
    with raises(ValueError, "frozen_apart"):
        layer(some_hidden(), SEVERAL)
    plain = a_layer()
    plain.bias.requires_grad_(False)
    plain(some_hidden(), SEVERAL).backward()
    assert plain.bias.grad is None
    assert plain.weight.grad is not None


def test_backward_of_logits_from_before_a_step_raises() -> None:
    layer, hidden = a_layer(optimizer=Adam()), some_hidden()
    logits = layer(hidden)
    layer(some_hidden(), SEVERAL).backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logits.sum().backward()


def test_layers_with_the_same_seed_have_different_weights() -> None:
    rows = SampledLinear(8, 10, seed=1).weight / SparseInputLinear(10, 8, seed=1).weight
    assert rows.std(1).min() > 0.01
