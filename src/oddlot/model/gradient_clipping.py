"""Gradient clipping by norm, in the arithmetic of `torch.nn.utils.clip_grad_norm_`."""

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite

import torch
from torch import Tensor

from oddlot.model.flat_buffer import FlatBuffer
from oddlot.model.vector_ops import chunks, mix

EPSILON = 1e-6
"""PyTorch's constant that is added to the norm in the denominator."""


@torch.no_grad()
def clip(parameters: Iterable[Tensor], most: float) -> None:
    """Clip the joint gradient of all parameters to the Euclidean norm `most`.

    Like `torch.nn.utils.clip_grad_norm_`, except that a gradient with NaN or infinity is not changed. PyTorch would
    spread these values to all tensors, and an error could not name the tensor.
    """
    parts = [_numbers(parameter) for parameter in parameters if parameter.grad is not None]
    factor = clip_factor(parts, most)
    if factor is not None:
        torch._foreach_mul_(parts, factor)


def clip_factor(gradients: Sequence[Tensor], most: float) -> Tensor | None:
    """Return the factor, at most 1, that clips these tensors to a joint Euclidean norm, or None if it is not finite."""
    return _factor(torch._foreach_norm(list(gradients)), gradients, most) if gradients else None


def merged_clip_factor(updates: Sequence[tuple[FlatBuffer, float]], most: float) -> Tensor | None:
    """Return the factor that clips the mean of updates, weighted with their shares. None if their norm is not finite.

    Parameters without a gradient in all updates are left out.
    """
    layout, total = updates[0][0].layout, sum(share for _, share in updates)
    flags = torch.stack([flat.without_gradient for flat, _ in updates]).amin(dim=0).tolist()
    given = [one for one, missing in zip(layout.trainable_entries, flags, strict=True) if not missing]
    names = [entry.name for entry in sorted(given, key=lambda entry: entry.rank)]  # as `model.parameters()`
    if len(updates) == 1 or total == 0:
        return clip_factor([updates[0][0].view(name) for name in names], most)
    parts = [part for name in names for part in _mixed(updates, name, total)]
    return _factor(torch._foreach_norm(parts), parts, most) if parts else None


def _mixed(updates: Sequence[tuple[FlatBuffer, float]], name: str, total: float) -> Iterator[Tensor]:
    """Yield the norm of each chunk of a parameter's mean gradient, as tensors of one element."""
    streams = [flat.view(name).view(-1) for flat, _ in updates]
    for span in chunks(streams[0].numel(), streams[0].device):
        parts = [stream[span] for stream in streams]
        mean = torch.empty_like(parts[0], dtype=torch.promote_types(parts[0].dtype, torch.float32))
        mix(mean, 0.0, parts, [share / total for _, share in updates])
        yield mean.norm().reshape(1)


def _factor(norms: Sequence[Tensor], gradients: Sequence[Tensor], most: float) -> Tensor | None:
    wide = torch.float64 if any(norm.dtype == torch.float64 for norm in norms) else torch.float32
    norm = torch.linalg.vector_norm(torch.stack([each.to(wide) for each in norms]))
    if not isfinite(norm):  # squares may overflow
        exact = [part.cpu().abs().double().norm() for part in gradients]
        norm = torch.linalg.vector_norm(torch.stack(exact))
    if not isfinite(norm):
        return None
    return torch.clamp(most / (norm + EPSILON), max=1.0)


def _numbers(parameter: Tensor) -> Tensor:
    """Return the values of a parameter's gradient, for changes in place. A sparse gradient is coalesced."""
    gradient = parameter.grad
    assert gradient is not None
    if not gradient.is_sparse:
        return gradient
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()
