"""Steps on rows, against PyTorch's on whole matrices."""

from typing import Any

import pytest
import torch
from torch import nn

from oddlot.sparse import SGD, Adam, RowAdagrad, Uniform
from oddlot.sparse.optimizers import Optimizer
from tests.sparse.layers import SEVERAL, a_layer, close, dense_loss, some_hidden


def stepped(optimizer: Optimizer, kind: Any, steps: int = 5, **options: Any) -> None:
    """The layer's own optimizer, beside PyTorch's on the same losses."""
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


def test_its_optimizers_step_as_those_of_pytorch() -> None:
    stepped(SGD(lr=0.3), torch.optim.SGD, lr=0.3)
    stepped(Adam(lr=0.02), torch.optim.Adam, lr=0.02)
    stepped(Adam(lr=0.02, decay=True), torch.optim.Adam, lr=0.02)


class _RowAdagrad:
    """As the formula says."""

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


def test_row_wise_adagrad_is_its_formula() -> None:
    stepped(RowAdagrad(lr=0.1), _RowAdagrad, lr=0.1)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.99, 0.99), (0.0, 0.9)])
def test_a_row_that_waited_is_where_dense_adam_has_it(betas: tuple[float, float]) -> None:
    """Each step touches few rows; the others' moments fade, and go on moving them."""
    rows, hidden = 50, some_hidden(2)
    layer = a_layer(Uniform(3), Adam(lr=0.01, betas=betas, decay=True), rows)
    twin = a_layer(Uniform(3), None, rows)
    dense = torch.optim.Adam(twin.parameters(), lr=0.01, betas=betas)
    for step in range(60):
        labels = torch.tensor([step % rows, (step * 7) % rows])
        for one in (layer, twin):
            one.step = step  # the same rows by chance
            one(hidden.detach(), labels).backward()
        for parameter in twin.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad.to_dense()
        dense.step()
        dense.zero_grad()
        if step < 20:  # until rows touched differ by what eps and rounding do
            touched = torch.from_numpy(layer._touched == step + 1)
            close(layer.weight[touched], twin.weight[touched], 2e-4)
        if step == 12:  # those that wait too, where they are asked for
            close(layer(hidden), twin(hidden), 5e-3)
        if step == 19:
            close(layer.state_dict()["weight"], twin.weight, 5e-4)


def test_a_long_wait_is_summed_to_its_end() -> None:
    """With a first moment that fades slowly; the row has one gradient, and 2,000 steps pass."""
    layer = a_layer(Uniform(1), Adam(lr=0.01, betas=(0.99, 0.9999), decay=True), 2)
    twin = nn.Parameter(layer.weight.detach().clone())
    dense = torch.optim.Adam([twin], lr=0.01, betas=(0.99, 0.9999))
    hidden, bias, label = some_hidden(1).detach(), layer.bias.detach().clone(), torch.tensor([0])
    layer(hidden, label).backward()
    nn.functional.cross_entropy(hidden @ twin.T + bias, label).backward()  # type: ignore[no-untyped-call]  # PyTorch's
    dense.step()
    assert twin.grad is not None
    twin.grad.zero_()
    for _ in range(2000):
        dense.step()
    layer.step += 2000
    close(layer.state_dict()["weight"], twin, 2e-3)
    assert (twin - a_layer(Uniform(1), None, 2).weight).abs().min() > 0.2, "it has moved far"
