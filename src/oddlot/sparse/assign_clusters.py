"""Assignment of rows to the nearest of many centers, searched in a few groups of centers."""

from collections.abc import Sequence
from math import isqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from oddlot.sparse.kernels import nearest as kernels
from oddlot.sparse.kernels import tables
from oddlot.sparse.threads import Crew

GROUPING_ROUNDS = 2
SCORES = 1 << 21
"""Number of scores that are computed at once, 8 MB."""


def nearest(
    crew: Crew,
    rows: NDArray[np.float32],
    centers: NDArray[np.float32],
    few: int,
    chance: np.random.Generator,
    wanted: int = 1,
) -> NDArray[np.int32]:
    """Return the centers with the largest inner products with each row, [wanted, rows], the largest first.

    Centers are grouped by k-means. There are about as many groups as centers per group. A row is compared only with the
    centers of the `few` groups nearest to its own, with one matrix product for all rows of a group. If these groups
    have fewer than `wanted` centers, a center is repeated.
    """
    heads, groups = _grouped(crew, torch.from_numpy(centers), chance)
    begins, members = sort_by_group(crew, groups, len(heads))
    parts = np.split(centers[members], begins[1:-1])
    near = _near(heads, few, begins)
    names, widths = _names(near, begins, members)
    row_begins, row_members = sort_by_group(crew, _largest(crew, torch.from_numpy(rows), heads), len(heads))
    found, block = np.empty((wanted, len(rows)), np.int32), max(1, SCORES // names.shape[1])
    gathered, scores = (heads.new_empty(block, columns) for columns in (rows.shape[1], names.shape[1]))
    for low in range(0, len(rows), block):
        some = row_members[low : low + block]
        crew.share(kernels.gather, some, rows, gathered.numpy())
        ends = np.clip(row_begins - low, 0, len(some))
        for group in np.flatnonzero(np.diff(ends)):
            mine, theirs = slice(*ends[group : group + 2]), np.concatenate([parts[i] for i in near[group]])
            torch.mm(gathered[mine], torch.from_numpy(theirs).T, out=scores[mine, : widths[group]])
        which = np.repeat(np.arange(len(heads)), np.diff(ends))
        crew.share(kernels.name_largest, scores.numpy(), which, widths, names, some, found)
    return found


def _near(heads: Tensor, few: int, begins: NDArray[np.int32]) -> list[Sequence[int]]:
    """Return, for each group, the `few` nearest groups, or all groups if these have no centers."""
    sizes, everywhere = np.diff(begins), range(len(heads))
    near = (heads @ heads.T).topk(min(few, len(heads))).indices.tolist()
    return [some if sizes[some].any() else everywhere for some in near]


def _names(
    near: list[Sequence[int]], begins: NDArray[np.int32], members: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the centers that rows of each group are compared with, [groups, most], and their number, [groups]."""
    parts = np.split(members, begins[1:-1])
    called = [np.concatenate([parts[i] for i in some]) for some in near]
    widths = np.array([len(one) for one in called])
    names = np.zeros((len(near), widths.max()), np.int32)
    for one, row in zip(called, names, strict=True):
        row[: len(one)] = one
    return names, widths


def _grouped(crew: Crew, centers: Tensor, chance: np.random.Generator) -> tuple[Tensor, NDArray[np.int32]]:
    """Return the heads of the groups of centers, [groups, columns], and the group of each center."""
    count = max(1, isqrt(len(centers)))
    heads = centers[torch.from_numpy(chance.choice(len(centers), count, replace=False))]
    units = normalize(centers)
    for _ in range(GROUPING_ROUNDS):
        groups = _largest(crew, units, heads)
        heads = normalize(torch.zeros_like(heads).index_add_(0, torch.from_numpy(groups), units))
    return heads, groups


def _largest(crew: Crew, rows: Tensor, heads: Tensor) -> NDArray[np.int32]:
    """Return the head with the largest inner product with each row."""
    found, block = np.empty(len(rows), np.int32), max(1, SCORES // len(heads))
    for low in range(0, len(rows), block):
        crew.share(kernels.largest, (rows[low : low + block] @ heads.T).numpy(), found[low : low + block])
    return found


def sort_by_group(
    crew: Crew, groups: NDArray[np.int32], count: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Sort members by group. Return the start of each group, [count + 1], and the members."""
    begins, members = np.empty((1, count + 1), np.int32), np.empty((1, len(groups)), np.int32)
    crew.share(tables.sort_by_code, groups[None], begins, members)
    return begins[0], members[0]
