"""Exact scoring of all outputs, block by block: the largest logits, and the loss."""

import torch
from torch import Tensor

BLOCK = 1 << 14
"""Rows that are scored at once. With more rows, allocating memory for their logits would be slow."""


def exact_topk(hidden: Tensor, weight: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest logits and their rows, [examples, k], the largest first."""
    values, rows = hidden.new_empty(len(hidden), 0), hidden.new_empty(len(hidden), 0, dtype=torch.int64)
    for low in range(0, len(weight), BLOCK):
        block = torch.nn.functional.linear(hidden, weight[low : low + BLOCK], bias[low : low + BLOCK])
        found = _best(block, k)
        values, rows = torch.cat([values, found[0]], 1), torch.cat([rows, found[1] + low], 1)
        values, order = _best(values, k)
        rows = rows.gather(1, order)
    return values, rows


def _best(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values, or all, and their positions. For k = 1, NumPy is 10 times as fast as PyTorch."""
    if k > 1:
        found = logits.topk(min(k, logits.shape[1]))
        return found.values, found.indices
    places = torch.from_numpy(logits.detach().numpy().argmax(1))[:, None]
    return logits.gather(1, places), places


def exact_loss(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Return the mean softmax loss over all rows, of the examples that have a label.

    The loss of an example is the mean over its labels, [examples, most], padded with -1.
    """
    total = hidden.new_full((len(hidden),), -torch.inf)
    for low in range(0, len(weight), BLOCK):
        block = torch.nn.functional.linear(hidden, weight[low : low + BLOCK], bias[low : low + BLOCK])
        total = torch.logaddexp(total, block.logsumexp(1))
    example, place = (labels >= 0).nonzero(as_tuple=True)
    rows = labels[example, place]
    own = (hidden[example] * weight[rows]).sum(1) + bias[rows]
    counts = (labels >= 0).sum(1)
    losses = (total[example] - own) / counts[example]
    return losses.sum() / (counts > 0).sum().clamp(min=1)
