"""A small layer with hidden vectors and labels, and reference results from PyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from oddlot.sparse import Adam, SampledLinear, Uniform
from oddlot.sparse.optimizers import Optimizer
from oddlot.sparse.sampler import Sampler

ROWS, COLUMNS, BATCH = 37, 16, 6
SEVERAL = torch.tensor([[3, 7, -1], [36, -1, -1], [-1, -1, -1], [0, 1, 2], [5, 5, -1], [9, -1, 30]])


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def a_layer(
    sampler: Sampler | None = None, optimizer: Optimizer | None = None, rows: int = ROWS
) -> SampledLinear:
    layer = SampledLinear(COLUMNS, rows, sampler or Uniform(rows), optimizer, seed=1)
    with torch.no_grad():
        layer.bias.normal_(generator=torch.Generator().manual_seed(2))
    return layer


def some_hidden(batch: int = BATCH, seed: int = 3) -> Tensor:
    return torch.randn(batch, COLUMNS, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def trained(sampler: Sampler, count: int = 2) -> SampledLinear:
    """Return a layer trained on `count` threads."""
    with threads(count):
        layer = SampledLinear(COLUMNS, 500, sampler, Adam(lr=0.01), seed=5)
        chance = torch.Generator().manual_seed(6)
        for step in range(12):
            hidden = some_hidden(33, seed=step)
            layer(hidden, torch.randint(0, 500, (33, 2), generator=chance)).backward()
    return layer


def dense_loss(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Return PyTorch's loss, with the target probability divided equally among an example's labels."""
    targets = torch.zeros(len(hidden), len(weight) + 1).scatter_(1, labels % (len(weight) + 1), 1.0)[:, :-1]
    some = targets.sum(1) > 0
    targets = targets[some] / targets[some].sum(1, keepdim=True)
    return nn.functional.cross_entropy(nn.functional.linear(hidden, weight, bias)[some], targets)


def gradient(of: Tensor) -> Tensor:
    """Return the gradient as a dense tensor."""
    assert of.grad is not None
    return of.grad.to_dense()


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@contextmanager
def memory_of(count: float) -> Iterator[None]:
    """Limit the memory of this machine to `count` bytes."""
    with patch("oddlot.sparse.errors._limits", lambda: [int(count)]):
        yield


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    """Return the arguments of the log messages."""
    return [record.args for record in caplog.records if isinstance(record.args, tuple)]
