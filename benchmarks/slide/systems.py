"""The same network, with a hidden layer of 128, in three systems: oddlot, dense and sampled softmax in PyTorch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.slide.setting import HIDDEN
from oddlot.sparse import Adam, LazyAdam, SampledLinear, SparseInputLinear
from oddlot.sparse.csr import Csr
from oddlot.sparse.optimizers import Moments, RowAdagrad
from oddlot.sparse.sampler import Sampler

SHARED, COUNTED_EVERY = 4096, 50


@dataclass(frozen=True)
class Tuned:
    """Settings that are searched for every system: learning rates and initial weights."""

    lr: float = 3e-3
    input_lr: float = 5e-2
    input_std: float = 0.03


class System(Protocol):
    """A network that can be trained."""

    def step(self, x: Csr, y: Csr) -> float:
        """Train on a batch, and return its loss."""

    def fall(self, factor: float) -> None:
        """Set all learning rates to `factor` times their initial values."""

    def scores(self, x: Csr) -> Tensor:
        """Return the logits of all outputs."""


def _falls(optimizers: Sequence[torch.optim.Optimizer]) -> Callable[[float], None]:
    """Return a function that multiplies the initial learning rates of all optimizers."""
    groups = [(group, group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]

    def fall(factor: float) -> None:
        for group, rate in groups:
            group["lr"] = rate * factor

    return fall


class Ours:
    """oddlot's `SparseInputLinear` and `SampledLinear`."""

    def __init__(
        self,
        features: int,
        labels: int,
        tuned: Tuned,
        sampler: Sampler,
        adagrad: float = 0.0,
        moments: Moments = "bf16",
        seed: int = 0,
    ) -> None:
        of_input = Adam(tuned.input_lr, moments=moments)
        self.input = SparseInputLinear(features, HIDDEN, of_input, seed, tuned.input_std)
        optimizer = RowAdagrad(adagrad) if adagrad else Adam(tuned.lr, moments=moments)
        self.output = SampledLinear(HIDDEN, labels, sampler, optimizer, seed)
        self.bias = LazyAdam([self.input.bias], lr=tuned.input_lr)
        self.own = [(one, one.lr) for one in (self.input.optimizer, self.output.optimizer) if one is not None]
        self.falls = _falls([self.bias])

    def fall(self, factor: float) -> None:
        for optimizer, rate in self.own:
            optimizer.lr = rate * factor
        self.falls(factor)

    def hidden(self, x: Csr) -> Tensor:
        """Return the outputs of the hidden layer."""
        hidden: Tensor = torch.relu(self.input(x.indptr, x.indices, x.data))
        return hidden

    def step(self, x: Csr, y: Csr) -> float:
        loss = self.output(self.hidden(x), (y.indptr, y.indices))
        self.bias.zero_grad()
        loss.backward()
        self.bias.step()
        return float(loss.detach())

    def scores(self, x: Csr) -> Tensor:
        logits: Tensor = self.output(self.hidden(x))
        return logits


class _Bag(nn.Module):
    """PyTorch's layer for sparse input."""

    def __init__(self, features: int, std: float) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(features, HIDDEN, mode="sum", include_last_offset=True)
        nn.init.normal_(self.bag.weight, std=std)
        self.bias = nn.Parameter(torch.zeros(HIDDEN))

    def forward(self, x: Csr) -> Tensor:
        indices, offsets = torch.from_numpy(x.indices).long(), torch.from_numpy(x.indptr)
        out: Tensor = self.bag(indices, offsets, per_sample_weights=torch.from_numpy(x.data)) + self.bias
        return torch.relu(out)


def mean_over(losses: Tensor, there: Tensor) -> Tensor:
    """Return the mean loss of the examples with labels, like oddlot's layers."""
    some = there.any(1)
    return (losses * some).sum() / some.sum().clamp(min=1)


def padded(y: Csr) -> tuple[Tensor, Tensor]:
    """Return the labels of each example, padded with label 0, and a mask of the real labels."""
    counts = np.diff(y.indptr)
    there = np.arange(counts.max(initial=1)) < counts[:, None]
    table = np.zeros(there.shape, np.int64)
    table[there] = y.indices
    return torch.from_numpy(table), torch.from_numpy(there)


class Dense:
    """PyTorch with all outputs and fused Adam. `log_softmax` is faster than `logsumexp` and a difference."""

    def __init__(self, features: int, labels: int, tuned: Tuned, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.input, self.output = _Bag(features, tuned.input_std), nn.Linear(HIDDEN, labels)
        nn.init.normal_(self.output.weight, std=HIDDEN**-0.5)
        nn.init.zeros_(self.output.bias)
        groups = [
            {"params": [*self.input.parameters()], "lr": tuned.input_lr},
            {"params": [*self.output.parameters()], "lr": tuned.lr},
        ]
        self.optimizer = torch.optim.Adam(groups, fused=True)
        self.fall = _falls([self.optimizer])

    def step(self, x: Csr, y: Csr) -> float:
        logits = self.output(self.input(x))
        table, there = padded(y)
        own = torch.log_softmax(logits, 1).gather(1, table)
        loss = mean_over(-(own * there).sum(1) / there.sum(1).clamp(min=1), there)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        self.optimizer.step()
        return float(loss.detach())

    def scores(self, x: Csr) -> Tensor:
        logits: Tensor = self.output(self.input(x))
        return logits


class Sampled:
    """Sampled softmax in PyTorch: the labels and 4,096 random outputs, shared by a batch, with logQ correction.

    The optimizer is SparseAdam on the rows in use. With `fused`, it is Adam on all rows: faster with few outputs.
    The share `frequency` of the draws follows the label frequencies so far. The rest is uniform.
    """

    def __init__(
        self,
        features: int,
        labels: int,
        tuned: Tuned,
        seed: int = 0,
        frequency: float = 0.0,
        fused: bool = False,
    ) -> None:
        torch.manual_seed(seed)
        self.labels, self.chance = labels, torch.Generator().manual_seed(seed + 1)
        self.frequency, self.steps, self.counts = frequency, 0, torch.zeros(labels, dtype=torch.float64)
        self.input = _Bag(features, tuned.input_std)
        self.input.bag.sparse = not fused
        self.weight, self.bias = (nn.Embedding(labels, width, sparse=not fused) for width in (HIDDEN, 1))
        nn.init.normal_(self.weight.weight, std=HIDDEN**-0.5)
        nn.init.zeros_(self.bias.weight)
        rows = [
            {"params": [self.input.bag.weight], "lr": tuned.input_lr},
            {"params": [self.weight.weight, self.bias.weight], "lr": tuned.lr},
        ]
        self.optimizers = [
            torch.optim.Adam(rows, fused=True) if fused else torch.optim.SparseAdam(rows),
            torch.optim.Adam([self.input.bias], lr=tuned.input_lr, fused=True),
        ]
        self.fall = _falls(self.optimizers)

    def drawn(self, y: Csr) -> tuple[Tensor, Tensor]:
        """Return distinct random outputs, and for each the negative log of its probability to be drawn."""
        draws = min(SHARED, self.labels)
        if not self.frequency:
            others = torch.randint(0, self.labels, (draws,), generator=self.chance).unique()  # type: ignore[no-untyped-call]  # untyped in PyTorch
            return others, torch.full((len(others),), float(np.log(self.labels / len(others))))
        if self.steps % COUNTED_EVERY == 0:
            share = self.frequency if self.steps else 0.0
            chances = (1 - share) / self.labels + share * self.counts / max(1.0, float(self.counts.sum()))
            self.cumulative = chances.cumsum(0)
            self.stands_for = -torch.log(-torch.expm1(draws * torch.log1p(-chances)))
        self.steps += 1
        self.counts += torch.bincount(torch.from_numpy(y.indices).long(), minlength=self.labels)
        places = torch.rand(draws, generator=self.chance, dtype=torch.float64) * self.cumulative[-1]
        others = torch.searchsorted(self.cumulative, places).clamp(max=self.labels - 1).unique()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        return others, self.stands_for[others].float()

    def step(self, x: Csr, y: Csr) -> float:
        hidden, (table, there) = self.input(x), padded(y)
        others, log_q = self.drawn(y)
        logits = hidden @ self.weight(others).T + self.bias(others)[:, 0] + log_q
        row = torch.arange(len(table))[:, None].expand_as(table)[there]
        place = torch.searchsorted(others, table[there])
        hit = others[place.clamp(max=len(others) - 1)] == table[there]
        logits = logits.index_put((row[hit], place[hit]), torch.tensor(-torch.inf))
        own = (self.weight(table) * hidden[:, None]).sum(2) + self.bias(table)[:, :, 0]
        own = own.masked_fill(~there, -torch.inf)
        total = torch.logsumexp(torch.cat([own, logits], 1), 1)
        loss = mean_over(total - own.masked_fill(~there, 0.0).sum(1) / there.sum(1).clamp(min=1), there)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # untyped in PyTorch
        for optimizer in self.optimizers:
            optimizer.step()
        return float(loss.detach())

    def scores(self, x: Csr) -> Tensor:
        logits: Tensor = nn.functional.linear(self.input(x), self.weight.weight, self.bias.weight[:, 0])
        return logits
