"""SparseInputLinear, compared with PyTorch's linear layer on dense rows."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oddlot.sparse import SGD, Adam, RowAdagrad, SparseInputLinear
from oddlot.sparse.optimizers import Optimizer

STARTS = np.array([0, 3, 3, 5, 9])
FEATURES = np.array([4, 0, 9, 2, 2, 7, 1, 0, 7])
"""Unsorted features. The second example has no features, and the third has feature 2 twice."""
VALUES = np.array([1.0, -2.0, 0.5, 3.0, 1.0, 0.25, 1.5, -1.0, 0.5], np.float32)


def whole() -> Tensor:
    dense = torch.zeros(4, 10)
    for example in range(4):
        for slot in range(STARTS[example], STARTS[example + 1]):
            dense[example, FEATURES[slot]] += float(VALUES[slot])
    return dense


@pytest.mark.parametrize(
    ("optimizer", "kind"), [(SGD(lr=0.2), torch.optim.SGD), (Adam(lr=0.03), torch.optim.Adam)]
)
def test_sparse_input_equals_a_linear_layer(optimizer: Optimizer, kind: Any) -> None:
    layer = SparseInputLinear(10, 6, optimizer, seed=1)
    plain = nn.Linear(10, 6)
    plain.weight.data = layer.weight.detach().T.clone()
    plain.bias.data.zero_()
    other = kind(plain.parameters(), lr=optimizer.lr)
    own = kind([layer.bias], lr=optimizer.lr)
    for step in range(4):
        target = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        found, expected = layer(STARTS, FEATURES, VALUES), plain(whole())
        torch.testing.assert_close(found, expected)
        for out, steps in ((found, own), (expected, other)):
            steps.zero_grad()
            (out - target).square().mean().backward()
            steps.step()
    used = [0, 1, 2, 4, 7, 9]
    torch.testing.assert_close(layer.weight[used], plain.weight.T[used], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.bias, plain.bias, rtol=1e-4, atol=1e-5)


def test_weights_of_absent_features_are_unchanged() -> None:
    layer = SparseInputLinear(10, 6, RowAdagrad(), seed=1)
    before = layer.weight.detach().clone()
    layer(STARTS, FEATURES, VALUES).sum().backward()
    assert (layer.weight != before).any(1).nonzero()[:, 0].tolist() == [0, 1, 2, 4, 7, 9]


def test_backward_of_weights_from_before_a_step_raises() -> None:
    layer = SparseInputLinear(10, 6, SGD(), seed=1)
    size = layer.weight.square().sum()
    layer(STARTS, FEATURES, VALUES).sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        size.backward()  # type: ignore[no-untyped-call]  # PyTorch's


def test_nan_gradients_change_no_weights() -> None:
    layer = SparseInputLinear(10, 6)
    before = layer.weight.detach().clone()
    (layer(STARTS, FEATURES, VALUES).sum() * torch.nan).backward()
    assert torch.equal(layer.weight, before)


def test_empty_batch_and_empty_examples_give_zeros() -> None:
    layer = SparseInputLinear(10, 6)
    none = np.zeros(0, np.int64)
    assert layer(np.zeros(1, np.int64), none, none.astype(np.float32)).shape == (0, 6)
    assert layer(np.zeros(3, np.int64), none, none.astype(np.float32)).tolist() == [[0.0] * 6] * 2
