"""Gradient clipping by norm."""

from collections.abc import Iterable, Sequence
from math import isfinite

import torch
from torch import Tensor

EPSILON = 1e-6
"""PyTorch's constant that is added to the norm in the denominator."""


@torch.no_grad()
def clip(parameters: Iterable[Tensor], most: float) -> None:
    """Clip the joint gradient of all parameters to the Euclidean norm `most`.

    Like `torch.nn.utils.clip_grad_norm_`, except that a gradient with NaN or infinity is not changed. PyTorch would
    spread these values to all tensors, and an error could not name the tensor.
    """
    parts = [_numbers(parameter) for parameter in parameters if parameter.grad is not None]
    norm = _norm(parts)
    if isfinite(norm) and norm + EPSILON > most:
        torch._foreach_mul_(parts, most / (norm + EPSILON))


def _numbers(parameter: Tensor) -> Tensor:
    """Return the values of a parameter's gradient, for changes in place. A sparse gradient is coalesced."""
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return gradient
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()


def _norm(parts: list[Tensor]) -> float:
    """Return the Euclidean norm of all parts, in float64 if squares overflow."""
    if not parts:
        return 0.0
    norm = _together(torch._foreach_norm(parts))
    return norm if isfinite(norm) else _together([part.cpu().abs().double().norm() for part in parts])


def _together(norms: Sequence[Tensor]) -> float:
    """Return the norm of all parts, computed from the norms of the parts."""
    wide = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    return float(torch.linalg.vector_norm(torch.stack([norm.to(wide) for norm in norms])))
