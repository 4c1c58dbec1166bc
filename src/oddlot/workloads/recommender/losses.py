"""Ranking losses of a batch of users: blocks (SAROS), pairs (BPR) and softmax."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.utils.checkpoint import checkpoint

from oddlot.workloads.recommender.samples import Batch

PAIRS = 2_000_000
"""Number of pairs of a block loss that are in memory at the same time."""


def block_loss(model: Any, batch: Batch, kept: Tensor, decay: float) -> tuple[Tensor, int]:
    """Return the mean block loss of the kept users, and their number of blocks.

    The loss of a block with clicks P and negatives N is (1 / (|P| |N|)) sum log(1 + exp(-u.(v_i - v_j))) over i in P
    and j in N, plus `decay` times |u|^2 + mean |v_i|^2 + mean |v_j|^2. All pairs of a block count, in chunks of
    `PAIRS`. The vector u is the user's before the block.
    """
    starts, negatives, clicks = batch["blocks"][kept[batch["owners"][batch["blocks"][:, 0]]]].unbind(1)
    if not len(starts):
        return model.nothing(), 0
    sizes = negatives + clicks
    block = torch.arange(len(starts)).repeat_interleave(sizes)
    at = sizes.cumsum(0) - sizes  # first row of each block among the rows of blocks
    rows = torch.arange(len(block)) + (starts - at)[block]
    context = model.context(batch, starts)
    items = model.item_vectors(batch["items"][rows])
    scores = (context[block] * items).sum(1)
    loss = _pairs(scores, at, negatives, clicks)
    if decay:
        is_click = torch.arange(len(block)) - at[block] >= negatives[block]
        share = 1 / torch.where(is_click, clicks[block], negatives[block])
        loss = loss + decay * (context.square().sum() + (items.square().sum(1) * share).sum())
    return loss / len(starts), len(starts)


def _pairs(scores: Tensor, at: Tensor, negatives: Tensor, clicks: Tensor) -> Tensor:
    """Return the sum over blocks of the mean logistic loss of their pairs."""
    counts = negatives * clicks
    ends = counts.cumsum(0)

    def chunk(scores: Tensor, first: int, last: int) -> Tensor:
        pairs = torch.arange(first, last)
        block = torch.searchsorted(ends, pairs, right=True)
        pair = pairs - (ends - counts)[block]
        negative = at[block] + pair % negatives[block]
        click = at[block] + negatives[block] + pair // negatives[block]
        return (softplus(scores[negative] - scores[click]) / counts[block]).sum()

    total = int(ends[-1])
    if total <= PAIRS:
        return chunk(scores, 0, total)
    parts = [
        checkpoint(chunk, scores, first, min(first + PAIRS, total), use_reentrant=False)
        for first in range(0, total, PAIRS)
    ]
    return torch.stack(parts).sum()


def pair_loss(
    model: Any, batch: Batch, kept: Tensor, decay: float, negatives: str = "all"
) -> tuple[Tensor, int]:
    """Return the mean BPR loss of the clicks of kept users, and their number.

    The negative of a click is drawn from all items. With `negatives` = "own", it is drawn from the user's items that
    were not clicked, if there are any. A drawn item that the user has clicked is left out.
    """
    owners, items, clicked = batch["owners"], batch["items"], batch["clicked"]
    rows = torch.nonzero(clicked & kept[owners]).flatten()
    own = torch.nonzero(~clicked).flatten() if negatives == "own" else rows[:0]
    counts = torch.bincount(owners[own], minlength=len(kept))
    count = counts[owners[rows]]
    draws = torch.rand(len(rows))
    any_item = (draws * model.items).long().clamp(max=model.items - 1)
    if len(own):
        at = (counts.cumsum(0) - counts)[owners[rows]] + (draws * count).long().clamp(min=0)
        drawn = torch.where(count > 0, items[own[at.clamp(max=len(own) - 1)]], any_item)
    else:
        drawn = any_item
    keys = owners * model.items + items
    fits = ~torch.isin(owners[rows] * model.items + drawn, keys[clicked])
    rows, drawn = rows[fits], drawn[fits]
    if not len(rows):
        return model.nothing(), 0
    context = model.context(batch, rows)
    positive, negative = model.item_vectors(items[rows]), model.item_vectors(drawn)
    loss = softplus((context * (negative - positive)).sum(1)).mean()
    if decay:
        squares = context.square() + positive.square() + negative.square()
        loss = loss + decay * squares.sum(1).mean()
    return loss, len(rows)


def softmax_loss(model: Any, batch: Batch, kept: Tensor, decay: float) -> tuple[Tensor, int]:
    """Return the mean cross entropy of the clicks of kept users over all items, and their number.

    A model with a sampled output layer computes few items for each click, without `decay`.
    """
    rows = torch.nonzero(batch["clicked"] & kept[batch["owners"]]).flatten()
    if not len(rows):
        return model.nothing(), 0
    items = batch["items"][rows]
    if model.output is not None:
        return model.output(model.context(batch, rows), items), len(rows)
    places, which = model.distinct_contexts(batch, rows)
    vectors, matrix = model.context(batch, places), model.item_matrix()
    positive = matrix[items]
    loss = (torch.logsumexp(vectors @ matrix.T, 1)[which] - (vectors[which] * positive).sum(1)).mean()
    if decay:
        loss = loss + decay * (vectors[which].square() + positive.square()).sum(1).mean()
    return loss, len(rows)


LOSSES = {"saros": block_loss, "bpr": pair_loss, "softmax": softmax_loss}
NEGATIVES = ("all", "own")
"""Items from which `bpr` draws: all that the user has not clicked, or only those that were shown to the user."""
