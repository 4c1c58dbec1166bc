"""Random changes of pictures of digits, as between the hands of different writers."""

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate, max_pool2d

UNCHANGED = 0.15
"""Share of the pictures without changes."""
MAX_TURN, MAX_SHEAR, MAX_SCALE, MAX_SHIFT = 0.22, 0.25, 0.14, 0.1
"""Radians; horizontal shift per height; relative; in halves of the picture's side."""
BENDS, MAX_BEND = 4, 0.09
"""Grid of the random displacements, and their size, in halves of the picture's side."""
MAX_WIDTH = 0.7
"""Weight of the picture with strokes wider or thinner by 2 pixels."""


def augmented(pixels: Tensor) -> Tensor:
    """Return shifted, turned, sheared, scaled and bent pictures [n, 28, 28], with other widths of the strokes.

    Random numbers come from torch's global generator.
    """
    count, side = len(pixels), pixels.shape[-1]
    grid = affine_grid(_transforms(count), [count, 1, side, side], align_corners=False)
    bends = (torch.rand(count, 2, BENDS, BENDS) * 2 - 1) * MAX_BEND
    bends = interpolate(bends, (side, side), mode="bilinear", align_corners=True).permute(0, 2, 3, 1)
    moved = grid_sample(pixels[:, None], grid + bends, align_corners=False)
    weight = (torch.rand(count, 1, 1, 1) * 2 - 1) * MAX_WIDTH
    wider, thinner = max_pool2d(moved, 3, 1, 1), -max_pool2d(-moved, 3, 1, 1)
    drawn = moved + weight.clamp(min=0) * (wider - moved) - weight.clamp(max=0) * (thinner - moved)
    keep = torch.rand(count, 1, 1) < UNCHANGED
    return torch.where(keep, pixels, drawn[:, 0]).clamp(0, 1)


def _transforms(count: int) -> Tensor:
    """Return random affine maps [count, 2, 3]."""
    turn, shear, wide, high, right, down = torch.rand(6, count) * 2 - 1
    turn = turn * MAX_TURN
    cos, sin = torch.cos(turn), torch.sin(turn)
    shear, wide, high = shear * MAX_SHEAR, 1 + wide * MAX_SCALE, 1 + high * MAX_SCALE
    rows = [
        torch.stack([cos * wide, (cos * shear - sin) * high, right * MAX_SHIFT], 1),
        torch.stack([sin * wide, (sin * shear + cos) * high, down * MAX_SHIFT], 1),
    ]
    return torch.stack(rows, 1)
