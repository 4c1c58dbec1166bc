"""Averaging of floating-point buffers. Running averages are recognized by their values."""

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor

from oddlot.model.vector_ops import chunks, mixer, move


def average(
    source: Tensor,
    target: Tensor,
    values: Sequence[Tensor],
    shares: Sequence[float],
    way: float,
    whole: Tensor,
) -> None:
    """Move `source` by `way` towards the mean of `values`, and write the result into `target`.

    `target` may be `source`. `shares` sum to 1. Exceptions are made number by number, in this order:

    - A number that is equal in `source` and all values is kept bit for bit.
    - Infinity and NaN are excluded from means. If `source` is not finite, the mean of the finite values replaces it. If
      no value is finite, `source` is kept.
    - If `source` and all values are integers, as for a count or a flag, the number of `whole` is used.
    """
    mix, scaled = mixer(source), [way * share for share in shares]
    wide = torch.promote_types(source.dtype, torch.float32)
    for span in chunks(source.numel(), source.device):
        old, parts = source[span].clone(), [value[span] for value in values]
        if wide == source.dtype:
            move(mix, source[span], target[span], 1 - way, parts, scaled)
        else:
            mixed = old.to(wide)
            mix(mixed, 1 - way, parts, scaled)
            target[span].copy_(mixed)
        _except(target[span], old, parts, shares, way, old if whole is source else whole[span])


def _except(
    new: Tensor, old: Tensor, values: Sequence[Tensor], shares: Sequence[float], way: float, whole: Tensor
) -> None:
    """Replace the numbers of `new` that are exceptions."""
    all_values = torch.stack([old, *values])
    if not isfinite(all_values.sum().item()):
        finite = all_values.isfinite().all(dim=0)
        new.copy_(torch.where(finite, new, _finite_mean(old, values, shares, way)))
    mixed = torch.where(_is_whole(all_values).all(dim=0), whole, new)
    torch.where((all_values == old).all(dim=0), old, mixed, out=new)


def _is_whole(values: Tensor) -> Tensor:
    """Return which values are integers. Values above 1 / eps do not count, because all floats there are integers."""
    return (values == values.round()) & (values.abs() < 1 / torch.finfo(values.dtype).eps)


def _finite_mean(old: Tensor, values: Sequence[Tensor], shares: Sequence[float], way: float) -> Tensor:
    """Return the averages of the finite values."""
    wide = old.to(torch.promote_types(old.dtype, torch.float32))
    total, weight = torch.zeros_like(wide), torch.zeros_like(wide)
    for value, share in zip(values, shares, strict=True):
        finite = value.isfinite()
        total += share * torch.where(finite, value, 0.0)
        weight += share * finite
    mean = total / weight  # NaN if no value is finite
    moved = torch.where(old.isfinite(), (1 - way) * wide + way * mean, mean)
    return torch.where(weight > 0, moved, wide).to(old.dtype)
