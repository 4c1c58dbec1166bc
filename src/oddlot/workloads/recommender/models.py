"""Models of users and items: matrix factorization, and attention over the last clicks."""

from typing import Any

import torch
from torch import Tensor, nn

from oddlot.workloads.recommender.samples import Batch


class Recommender(nn.Module):
    """Base class. The score of an item is the product of its vector and the context vector of a user.

    Args:
        items: Number of items.
        width: Size of the vectors.
        counts: Number of clicks of each item, for a sampled output layer; None for a dense one.
        active: Number of rows that the sampled layer computes for each click.
    """

    def __init__(self, items: int, width: int, counts: Any = None, active: int = 300) -> None:
        super().__init__()
        self.items, self.output = items, None
        if counts is None:
            self.item = nn.Embedding(items, width)
            _start(self.item.weight)
        else:
            from oddlot.sparse import SampledLinear, Unigram

            sampler = Unigram(min(active, items), counts=counts)
            self.output = SampledLinear(width, items, sampler, optimizer=None, seed=None)

    def item_matrix(self) -> Tensor:
        """Return the vectors of all items, [items, width]."""
        return self.item.weight if self.output is None else self.output.weight

    def item_vectors(self, items: Tensor) -> Tensor:
        """Return the vectors of items, [n, width]."""
        return self.item_matrix()[items]

    def scores(self, context: Tensor) -> Tensor:
        """Return the scores of all items, [n, items]."""
        found = context @ self.item_matrix().T
        return found if self.output is None else found + self.output.bias

    def nothing(self) -> Tensor:
        """Return 0, with the weights in its graph."""
        return 0.0 * torch.stack([each.flatten()[0] for each in self.parameters()]).sum()

    def context(self, batch: Batch, rows: Tensor) -> Tensor:
        """Return the vectors of the users before these rows of the batch, [rows, width]."""
        raise NotImplementedError

    def history(self, batch: Batch) -> Tensor:
        """Return the vectors of the users of a test batch after all their training clicks, [n, width]."""
        raise NotImplementedError

    def distinct_contexts(self, batch: Batch, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows with all distinct contexts of `rows`, and the index of the context of each row."""
        return rows, torch.arange(len(rows))


def _start(weight: Tensor) -> None:
    """Set uniform values from 0, as the authors of SAROS, scaled so that scores start near 0.25."""
    nn.init.uniform_(weight, 0.0, weight.shape[1] ** -0.5)


class MatrixFactorization(Recommender):
    """A vector for each user and each item."""

    def __init__(self, users: int, items: int, width: int, counts: Any = None, active: int = 300) -> None:
        super().__init__(items, width, counts, active)
        self.user = nn.Embedding(users, width)
        _start(self.user.weight)

    def context(self, batch: Batch, rows: Tensor) -> Tensor:
        """Return the vectors of the rows' users."""
        found: Tensor = self.user.weight[batch["users"][batch["owners"][rows]]]
        return found

    def history(self, batch: Batch) -> Tensor:
        """Return the vectors of the users."""
        return self.user.weight[batch["users"]]

    def distinct_contexts(self, batch: Batch, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return one row of each user."""
        owners = batch["owners"][rows]
        distinct, which = torch.unique(owners, return_inverse=True)
        first = torch.searchsorted(owners, distinct)
        return rows[first], which


class Attention(Recommender):
    """A small causal transformer over the user's last clicks (SASRec, Kang and McAuley 2018). Users have no weights."""

    def __init__(
        self,
        items: int,
        width: int,
        context: int,
        layers: int = 1,
        heads: int = 2,
        dropout: float = 0.1,
        counts: Any = None,
        active: int = 300,
    ) -> None:
        super().__init__(items, width, counts, active)
        self.input = None if counts is None else nn.Embedding(items, width)
        self.position = nn.Embedding(context, width)
        nn.init.normal_(self.position.weight, std=width**-0.5)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    def _states(self, windows: Tensor) -> Tensor:
        """Return the states after each place of the windows, [windows * context, width]."""
        inputs = self.item.weight if self.input is None else self.input.weight
        there = windows >= 0
        states = inputs[windows.clamp(min=0)] * there.unsqueeze(-1) + self.position.weight
        states = self.dropout(states)
        mask = nn.Transformer.generate_square_subsequent_mask(windows.shape[1], device=windows.device)
        for layer in self.layers:
            states = layer(states, src_mask=mask, is_causal=True)
        found: Tensor = self.norm(states)
        return found.flatten(0, 1)

    def context(self, batch: Batch, rows: Tensor) -> Tensor:
        """Return the states before the rows."""
        return self._states(batch["windows"])[batch["places"][rows]]

    def history(self, batch: Batch) -> Tensor:
        """Return the states after the last clicks."""
        return self._states(batch["windows"])[batch["history"]]
