"""All outputs, scored block by block: those with the largest logits, and the loss."""

import torch
from torch import Tensor

BLOCK = 1 << 14
"""rows that are scored at once: so few that room for their logits is not asked for page by page"""


def exact_topk(hidden: Tensor, weight: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest logits and their rows, [examples, k], the largest first; all rows are scored, block by block."""
    values, rows = hidden.new_empty(len(hidden), 0), hidden.new_empty(len(hidden), 0, dtype=torch.int64)
    for low in range(0, len(weight), BLOCK):
        block = torch.nn.functional.linear(hidden, weight[low : low + BLOCK], bias[low : low + BLOCK])
        found = _best(block, k)
        values, rows = torch.cat([values, found[0]], 1), torch.cat([rows, found[1] + low], 1)
        values, order = _best(values, k)
        rows = rows.gather(1, order)
    return values, rows


def _best(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and places of the k largest, or of all; a single one NumPy finds in a tenth of PyTorch's time."""
    if k > 1:
        found = logits.topk(min(k, logits.shape[1]))
        return found.values, found.indices
    places = torch.from_numpy(logits.detach().numpy().argmax(1))[:, None]
    return logits.gather(1, places), places


def exact_loss(hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """The mean softmax loss over all rows, which are scored block by block, of the examples that have a label: that of
    an example is the mean over its labels, [examples, most], filled up with -1."""
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
