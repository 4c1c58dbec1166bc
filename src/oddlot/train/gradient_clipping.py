"""Clipping of a gradient to a norm."""

from collections.abc import Iterable, Sequence
from math import isfinite

import torch
from torch import Tensor

EPSILON = 1e-6
"""PyTorch's, beside the norm that is divided by"""


@torch.no_grad()
def clip(parameters: Iterable[Tensor], most: float) -> None:
    """Shorten the gradient of all parameters together to the Euclidean norm `most`, if it is longer.

    As `torch.nn.utils.clip_grad_norm_`, but one with NaN or infinity stays as it is: PyTorch would make NaN of all of
    it, or zeros of what is finite, and nobody could say any more which tensor was bad.
    """
    parts = [_numbers(parameter) for parameter in parameters if parameter.grad is not None]
    norm = _norm(parts)
    if isfinite(norm) and norm + EPSILON > most:
        torch._foreach_mul_(parts, most / (norm + EPSILON))


def _numbers(parameter: Tensor) -> Tensor:
    """The numbers of a parameter's gradient, which may be changed in place; of a sparse one each row once."""
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return gradient
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()


def _norm(parts: list[Tensor]) -> float:
    """The Euclidean norm of all of them. Their squares may overflow where they do not."""
    if not parts:
        return 0.0
    norm = _together(torch._foreach_norm(parts))
    return norm if isfinite(norm) else _together([part.cpu().abs().double().norm() for part in parts])


def _together(norms: Sequence[Tensor]) -> float:
    """The norm of all parts, from the norms of each."""
    wide = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    return float(torch.linalg.vector_norm(torch.stack([norm.to(wide) for norm in norms])))
