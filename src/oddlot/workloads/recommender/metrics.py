"""Metrics of recommendations: by full ranking, and as the authors of SAROS count them. Floors."""

from collections.abc import Callable

import torch
from torch import Tensor

from oddlot.workloads.recommender.samples import Batch, HeldOutUsers

K = 10
"""Number of recommended items in the metrics."""
ROWS = 256
"""Number of users whose scores are in memory at the same time."""
TIE_SEED = 1
"""Seed of the order of items with equal scores, the same for all models."""


def hits(scores: Tensor, batch: Batch, is_candidate: Tensor) -> tuple[Tensor, Tensor]:
    """Return the labels of the best items, and the numbers of relevant items, of the users of a test batch.

    `scores` are [n, items], and `is_candidate` [items]: items of the training part. Labels are [n, 20]: first those of
    the 10 best of all items that the user has not seen in training, then those of the 10 best of the test block. They
    are 1 for clicked items. Numbers are [n, 1]. Items with equal scores are in a fixed random order.
    """
    items, clicked = batch["test_items"], batch["test_clicked"].to(torch.bool)
    owners = torch.arange(len(scores)).unsqueeze(1).expand_as(items)
    relevant = torch.zeros(scores.shape, dtype=torch.bool)
    relevant[owners[clicked], items[clicked]] = True
    shuffled = torch.randperm(scores.shape[1], generator=torch.Generator().manual_seed(TIE_SEED))
    own = scores.gather(1, items.clamp(min=0)).masked_fill(items < 0, -torch.inf)
    block = shuffled.argsort()[items.clamp(min=0)].argsort(1)
    best = _best(own.gather(1, block), clicked.gather(1, block))
    allowed = is_candidate.repeat(len(scores), 1)
    allowed[batch["seen_owners"], batch["seen_items"]] = False
    full = _best(scores.masked_fill(~allowed, -torch.inf)[:, shuffled], (relevant & allowed)[:, shuffled])
    return torch.cat([full, best], 1), relevant.sum(1, keepdim=True).float()


def _best(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the labels of the 10 best items, with zeros if there are fewer, [n, 10]."""
    best = scores.sort(dim=1, descending=True, stable=True).indices if scores.shape[1] < 4 * K else None
    order = scores.topk(K, 1).indices if best is None else best[:, :K]
    found = labels.gather(1, order).float()
    return torch.nn.functional.pad(found, (0, K - found.shape[1]))


def ndcg(outputs: Tensor, targets: Tensor) -> float:
    """Return NDCG@10 by full ranking. The ideal ranking has all relevant items first."""
    discount = 1 / torch.log2(torch.arange(K) + 2.0)
    ideal = discount.cumsum(0)[targets[:, 0].long().clamp(1, K) - 1]
    return float(((outputs[:, :K] * discount).sum(1) / ideal).mean())


def average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Return MAP@10 by full ranking. Precisions are divided by the smaller of 10 and the number of relevant items."""
    found = outputs[:, :K]
    return float((_precisions(found).sum(1) / targets[:, 0].clamp(1, K)).mean())


def recall(outputs: Tensor, targets: Tensor) -> float:
    """Return recall@10 by full ranking."""
    return float((outputs[:, :K].sum(1) / targets[:, 0].clamp(min=1)).mean())


def authors_ndcg(outputs: Tensor, _targets: Tensor) -> float:
    """Return NDCG@10 among the items of the test block, as the authors' code counts it.

    Gains are 1, 1, 1/log2(3), 1/log2(4), ..., and the ideal ranking has the same 10 items.
    """
    found = outputs[:, K:]
    discount = 1 / torch.log2(torch.arange(K) + 1.0).clamp(min=1)
    ideal = (found.sort(dim=1, descending=True).values * discount).sum(1)
    return float(((found * discount).sum(1) / ideal.clamp(min=1)).mean())


def authors_average_precision(outputs: Tensor, _targets: Tensor) -> float:
    """Return MAP@10 among the items of the test block, divided by the number of relevant items among the 10."""
    found = outputs[:, K:]
    return float((_precisions(found).sum(1) / found.sum(1).clamp(min=1)).mean())


def _precisions(found: Tensor) -> Tensor:
    """Return the precision at each relevant place, 0 at the others."""
    return found * found.cumsum(1) / torch.arange(1, K + 1)


Metric = Callable[[Tensor, Tensor], float]
METRICS: dict[str, Metric] = {
    "ndcg10": ndcg,
    "map10": average_precision,
    "recall10": recall,
    "ndcg10_authors": authors_ndcg,
    "map10_authors": authors_average_precision,
}


def measured(users: HeldOutUsers, is_candidate: Tensor, score: Callable[[Batch], Tensor]) -> dict[str, float]:
    """Return all metrics of a function that returns the scores [n, items] of a test batch."""
    parts = []
    for first in range(0, len(users), ROWS):
        batch = users.__getitems__(range(first, min(first + ROWS, len(users))))
        parts.append(hits(score(batch), batch, is_candidate))
    outputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
    return {name: metric(outputs, targets) for name, metric in METRICS.items()}


def floors(users: HeldOutUsers, is_candidate: Tensor, popularity: Tensor) -> dict[str, float]:
    """Return the metrics of random scores and of popularity [items], by name with `_random` and `_popular`."""
    generator = torch.Generator().manual_seed(0)
    by_chance = measured(
        users,
        is_candidate,
        lambda batch: torch.rand((len(batch["users"]), len(popularity)), generator=generator),
    )
    popular = measured(users, is_candidate, lambda batch: popularity.expand(len(batch["users"]), -1))
    return {f"{name}_random": value for name, value in by_chance.items()} | {
        f"{name}_popular": value for name, value in popular.items()
    }
