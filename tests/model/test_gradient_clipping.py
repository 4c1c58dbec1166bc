"""Gradient clipping equals PyTorch's, and does not hide values that are not finite."""

from math import inf, isnan, nan

import pytest
import torch
from torch import Tensor, nn

from oddlot.model.gradient_clipping import clip


def parameters(*gradients: Tensor | None) -> list[Tensor]:
    """Return parameters with these gradients."""
    made = []
    for gradient in gradients:
        made.append(torch.zeros(3 if gradient is None else gradient.shape, requires_grad=True))
        made[-1].data = made[-1].data.to(torch.float32 if gradient is None else gradient.dtype)
        made[-1].grad = None if gradient is None else gradient.clone()
    return made


def clipped(gradients: list[Tensor | None], most: float) -> list[Tensor | None]:
    ours = parameters(*gradients)
    clip(ours, most)
    return [parameter.grad for parameter in ours]


@pytest.mark.parametrize("most", [1e-4, 0.3, 2.0, 100.0])
@pytest.mark.parametrize("dtypes", ["32 32", "64 32", "64", "16 16", "16 32 64"])
def test_clipping_equals_pytorch(most: float, dtypes: str) -> None:
    torch.manual_seed(0)
    kinds = {"16": torch.bfloat16, "32": torch.float32, "64": torch.float64}
    gradients: list[Tensor | None] = [torch.randn(4, 3, dtype=kinds[kind]) for kind in dtypes.split()]
    gradients.append(None)
    theirs = parameters(*gradients)
    torch.nn.utils.clip_grad_norm_(theirs, most)
    for ours, parameter in zip(clipped(gradients, most), theirs, strict=True):
        assert ours is None or torch.allclose(ours, parameter.grad, rtol=1e-2 if "16" in dtypes else 1e-6)  # type: ignore[arg-type]
        assert ours is None or ours.dtype == parameter.grad.dtype  # type: ignore[union-attr]


def test_only_gradients_above_the_norm_are_clipped() -> None:
    gradient = torch.tensor([0.6, 0.8])
    (same,) = clipped([gradient], 1.1)
    assert torch.equal(same, gradient)  # type: ignore[arg-type]
    (found,) = clipped([torch.tensor([1.001, 0.0, 0.0])], 1.0)
    assert found is not None
    assert float(found.norm()) <= 1.0
    assert clipped([None], 1.0) == [None]


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_non_finite_values_are_unchanged(bad: float) -> None:
    first, second = clipped([torch.tensor([3.0, bad]), torch.tensor([4.0])], 1.0)
    assert first is not None
    assert first[0] == 3.0
    assert isnan(first[1]) if isnan(bad) else first[1] == bad
    assert second == torch.tensor([4.0])


def test_gradients_with_overflowing_squares_are_clipped() -> None:
    """Gradients with overflowing squares are clipped to the norm. PyTorch sets them to zero."""
    long, other = clipped([torch.tensor([3e30, 0.0]), torch.tensor([4e30])], 1.0)
    assert torch.allclose(torch.cat([long, other]), torch.tensor([0.6, 0.0, 0.8]))  # type: ignore[list-item]


def test_duplicate_rows_of_a_sparse_gradient_are_summed() -> None:
    """Sparse gradients with duplicate rows are clipped. PyTorch does not support this."""

    def gradient(sparse: bool) -> Tensor:
        words = nn.Embedding(5, 2, sparse=sparse)
        words(torch.tensor([1, 1, 3])).sum().backward()
        clip(words.parameters(), 1.0)
        assert words.weight.grad is not None
        return words.weight.grad

    assert gradient(sparse=True).is_sparse
    assert torch.allclose(gradient(sparse=True).to_dense(), gradient(sparse=False))
    assert gradient(sparse=False).norm().item() == pytest.approx(1.0)
