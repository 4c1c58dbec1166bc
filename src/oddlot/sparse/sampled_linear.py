"""An output layer that computes few of its rows for each example."""

import logging
from copy import copy
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from oddlot.sparse.active_set import Active, Marks
from oddlot.sparse.errors import coded
from oddlot.sparse.kernels import output
from oddlot.sparse.labels import Labels
from oddlot.sparse.memory import check_memory
from oddlot.sparse.optimizers import Adam, Optimizer, alike, bytes_of_row, check_optimizer, checked_numbers
from oddlot.sparse.pairs import Pairs, chunks_for, sparse_rows
from oddlot.sparse.sampler import Sampler, check_sampler
from oddlot.sparse.samplers import Clusters
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import MAX_SEED, TOO_LARGE, check_number, check_parameters, check_whole

logger = logging.getLogger(__name__)
STREAM, STEP = 1_000_003, 2_654_435_761
"""odd numbers that keep the chance of layers and steps apart"""


@dataclass
class Batch:
    """What is to be remembered between a loss and its gradient."""

    active: Active
    pairs: Pairs
    hidden: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    loss: float = 0.0
    labelled: int = 0
    """examples that have a label"""


class SampledLinear(nn.Module):
    """A linear layer on top of a network, with the softmax loss of a few of its outputs for each example.

    `layer(hidden, labels)` is the mean cross entropy over the labels and the rows that the sampler chooses, a scalar;
    its backward gives the gradient of `hidden` and, with an optimizer of this package, steps at once on the rows that
    were computed, which have no `.grad`. With `optimizer=None` weight and bias get sparse gradients, for any
    optimizer of PyTorch that takes these. `layer(hidden)` is all logits, [batch, out_features].

    `hidden` is [batch, in_features], of any floating dtype on any device; the rows are float32 on the CPU. `labels` are
    a 1-D tensor (one each; -1: none), a 2-D one filled up with -1 (several), or the arrays (starts, labels) of a CSR
    matrix, of which example i has labels[starts[i]:starts[i + 1]]. Several labels share the target equally; an example
    without any counts for nothing. Labels that are out of range are a ValueError. A batch whose loss is not finite,
    or whose gradient could be above 1e15, changes nothing here, and gives NaN to the network below; under
    `torch.no_grad()`, and of a layer that is frozen, no row is stepped on. If there are several losses before their
    gradients, each gradient sees the rows as they are by then. Losses are for one thread at a time; several may ask
    for logits, but of a layer whose Adam decays, where rows are brought up to date first.

    The same seed and inputs give the same weights and gradients bit for bit, on any number of threads. `seed=None`
    draws from PyTorch's random state, as dropout does. Only weights are in `state_dict()`: when they are loaded, what a
    sampler knows is made anew, and the optimizer goes on with what it has. The layer pickled whole has everything.

    Idea: Chen et al., "SLIDE" (MLSys 2020). The loss is that of sampled softmax with its log Q correction (Bengio,
    Senécal, 2008), where what the sampler has found counts as itself and each row by chance for as many as it stands
    for.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sampler: Sampler | None = None,
        optimizer: Optimizer | None = Adam(),  # noqa: B008 - a dataclass of numbers; None is another wish
        seed: int | None = 0,
        std: float | None = None,
    ) -> None:
        super().__init__()
        check_whole(in_features=in_features, out_features=out_features)
        check_whole(0, MAX_SEED, seed=0 if seed is None else seed)
        std = in_features**-0.5 if std is None else std
        check_number(0, inf, std=std)
        self.in_features, self.out_features = in_features, out_features
        self._check(optimizer)
        self.sampler = sampler
        self.batches = 0
        """losses to learn from"""
        self.step = 0
        """steps on the rows"""
        self.seed = None if seed is None else int(seed)
        chance = None if seed is None else torch.Generator().manual_seed(int(seed))
        self.weight = nn.Parameter(
            torch.randn(out_features, in_features, generator=chance, dtype=torch.float32, device="cpu").mul_(
                std
            )
        )
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=torch.float32, device="cpu"))
        self._optimizer: Optimizer | None = None
        self.optimizer = optimizer
        self._marks = Marks(out_features)
        self._taught = False
        """the sampler has seen a batch to learn from since the rows became others"""
        self._free: list[Batch] = []
        self.active_rows, self.chance_share = 0.0, 0.0
        """of the last batch: rows of an example with labels, and the share of them that were taken by chance"""
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]  # PyTorch's
        self.register_state_dict_pre_hook(_up_to_date)  # type: ignore[no-untyped-call]  # PyTorch's

    @property
    def sampler(self) -> Sampler:
        """Another one may take its place at any time; None: `Clusters()`."""
        return self._sampler

    @sampler.setter
    def sampler(self, wanted: Sampler | None) -> None:
        check_sampler(wanted)
        self._check_together(wanted, getattr(self, "_optimizer", None))
        self._sampler: Sampler = Clusters() if wanted is None else wanted
        self._token = object()
        """what the sampler knows the layer by whose rows it has seen; a copy's sampler has the copy's"""

    @property
    def optimizer(self) -> Optimizer | None:
        """The layer's own copy, whose rate may be changed. Another one of the same kind goes on with what was kept; one
        of another kind, or with other moments or decay, begins anew."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, wanted: Optimizer | None) -> None:
        self._check(wanted)
        self._check_together(self.sampler, wanted)
        if not alike(self._optimizer, wanted):
            self._catch_up(Crew())
            self._keep_for(wanted)
        if isinstance(wanted, Adam) and wanted.decay:
            self._corrections = wanted.corrections()
        self._optimizer = copy(wanted)

    def _check(self, optimizer: Optimizer | None) -> None:
        """ValueError: it is none. MemoryError: with it the layer is too large for this machine."""
        check_optimizer(optimizer)
        needed = self.out_features * bytes_of_row(optimizer, self.in_features)
        check_memory(needed, f"a layer of {self.out_features:,} outputs")

    @staticmethod
    def _check_together(sampler: Sampler | None, optimizer: Optimizer | None) -> None:
        """ValueError: the optimizer moves rows that the sampler takes for unchanged."""
        if getattr(sampler, "changed_only", False) and isinstance(optimizer, Adam) and optimizer.decay:
            told = "changed_only=True is for optimizers that leave rows alone: with decay=True all rows move"
            raise coded(ValueError(told), "changed_only_with_decay")

    def _keep_for(self, optimizer: Optimizer | None) -> None:
        """Room for what it keeps of each row, as at first."""
        self.step = 0
        if optimizer is not None:
            self._state = optimizer.state(self.out_features, self.in_features)
            self._bias_state = optimizer.state(self.out_features, 1)
        if isinstance(optimizer, Adam) and optimizer.decay:
            self._touched = np.zeros(self.out_features, np.int64)

    def forward(self, hidden: Tensor, labels: Any = None) -> Tensor:
        """The mean loss of the batch; without labels all logits."""
        _check_hidden(hidden, self.in_features)
        shape = self.out_features, self.in_features
        check_parameters(weight=(self.weight, shape), bias=(self.bias, shape[:1]))
        if labels is None:
            self._catch_up(Crew())
            return nn.functional.linear(hidden.to(self.weight), self.weight, self.bias).to(hidden)
        targets = Labels.of(labels, self.out_features)
        if len(targets) != len(hidden):
            error = ValueError(f"{len(hidden)} hidden vectors and labels of {len(targets)} examples")
            raise coded(error, "different_lengths", name="labels", given=len(targets), expected=len(hidden))
        if self.optimizer is not None and self.weight.requires_grad != self.bias.requires_grad:
            told = "weight and bias are stepped on together: freeze both, or take optimizer=None"
            raise coded(ValueError(told), "frozen_apart")
        self.batches += (learns := torch.is_grad_enabled())
        loss: Tensor = _Loss.apply(hidden, self.weight, self.bias, self, targets, learns)  # type: ignore[no-untyped-call]  # PyTorch's
        return loss

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.sampler}, {self.optimizer}"

    # --- the two halves of a step ----------------------------------------------------------------

    def _begin(self, hidden: NDArray[np.float32], labels: Labels, learns: bool = True) -> Batch:
        """Choose the active sets, and compute their loss and its gradient by the logits."""
        learns = learns and bool(np.isfinite(hidden).all())  # of a bad batch a sampler learns nothing either
        crew, (weight, bias), chance = Crew(), self._plain(), self._chance()
        batch = self._free.pop() if self._free else Batch(Active(self.out_features), Pairs(self.out_features))
        active, batch.hidden = batch.active, hidden
        self._own_sampler(learns)
        self.sampler.prepare(crew, weight, bias, self.batches, chance)
        active.begin(crew, labels, self.sampler.most(self.out_features), self._marks, learns)
        self.sampler.choose(crew, hidden, active, chance)
        unlabelled = active.labels == 0  # nothing is learnt of them: their rows stay where they are
        active.counts[unlabelled] = active.sure[unlabelled] = 0
        total, sure = int(active.counts.sum()), int(active.sure.sum())
        batch.labelled = max(1, int((active.labels > 0).sum()))
        self.active_rows, self.chance_share = total / batch.labelled, (total - sure) / max(1, total)
        if learns and self.batches == 1:
            told = "%.0f rows for an example of the first batch, %.0f %% of them by chance"
            logger.info(told, self.active_rows, 100 * self.chance_share)
        batch.pairs.group(
            crew, active.starts, active.counts, active.rows, chunks_for(total, len(active.counts))
        )
        self._catch_up(crew, batch.pairs)
        crew.share(output.forward, *batch.pairs.sorted, weight, bias, hidden, active.logits)
        crew.share(
            output.softmax, active.starts, active.counts, active.labels, active.sure, active.log_weights,
            active.logits, active.deltas, active.losses,
        )  # fmt: skip
        batch.loss = float(active.losses.sum()) / batch.labelled
        return batch

    def _own_sampler(self, learns: bool) -> None:
        """What the sampler knows may be of another layer, which had it last, or of a measurement before training, which
        is to change nothing."""
        is_own = getattr(self.sampler, "layer", None) is self._token
        if not is_own or (learns and not self._taught):
            self.sampler.forget()
            self.sampler.layer = self._token  # type: ignore[attr-defined]  # a note of ours on whatever a sampler is
            self._taught = learns

    def _chance(self) -> int:
        """The seed of this batch."""
        if self.seed is None:
            return int(torch.randint(2**62, ()))
        return (self.seed * STREAM + self.batches) * STEP % 2**62

    def _catch_up(self, crew: Crew, pairs: Pairs | None = None) -> None:
        """Bring the rows of a batch, or all, to where dense Adam has them after all steps."""
        if not isinstance(self.optimizer, Adam) or not self.optimizer.decay:
            return
        rows = np.arange(self.out_features, dtype=np.int32) if pairs is None else pairs.rows
        crew.share(
            output.catch_up_rows, rows, *self._matrices(), *self._kept(),
            checked_numbers(self.optimizer, max(1, self.step)), self._touched, self.step, self._corrections,
        )  # fmt: skip

    def _finish(
        self, batch: Batch, scale: float, wanted: bool
    ) -> tuple[NDArray[np.float32], Tensor | None, Tensor | None]:
        """Step on the rows that were computed; the gradients of the hidden vectors and, without optimizer, of the
        rows. These stay as they are if nothing is `wanted` of them."""
        crew, active = Crew(), batch.active
        hidden_gradients = np.empty((len(batch.pairs.rows_of), *batch.hidden.shape), np.float32)
        by_deltas = active.deltas, np.float32(scale / batch.labelled), hidden_gradients
        rows: tuple[Tensor | None, Tensor | None] = (None, None)
        # an example's deltas sum up to 2 at most, and the loss is a mean over examples
        largest = abs(scale) * float(np.abs(batch.hidden[active.labels > 0]).max(initial=0.0))
        if not isfinite(batch.loss * scale) or not largest < TOO_LARGE:
            hidden_gradients[:] = np.nan
        elif self.optimizer is None or not wanted:
            rows = self._collected(crew, batch, *by_deltas)
        else:
            self._catch_up(crew, batch.pairs)  # which other losses may have stepped on since
            numbers = checked_numbers(self.optimizer, self.step + 1)
            self.step += 1
            crew.share(
                output.backward, *batch.pairs.sorted, *self._matrices(), batch.hidden, *by_deltas, self.optimizer.kind,
                *self._kept(), numbers,
            )  # fmt: skip
            if isinstance(self.optimizer, Adam) and self.optimizer.decay:
                self._touched[batch.pairs.rows] = self.step
            for changed in (self.weight, self.bias):
                increment_version(changed)  # so that logits from before have no gradient any more
        self._free.append(batch)
        return hidden_gradients.sum(0), *rows

    def _collected(self, crew: Crew, batch: Batch, *by_deltas: Any) -> tuple[Tensor, Tensor]:
        """The gradients of weight and bias, as tensors of their touched rows."""
        total = batch.pairs.touched
        rows, gradients = np.empty(total, np.int64), np.empty((total, self.in_features), np.float32)
        bias_gradients = np.empty(total, np.float32)
        weight, _ = self._plain()
        crew.share(
            output.collect, *batch.pairs.sorted, weight, batch.hidden, *by_deltas, batch.pairs.places, rows, gradients,
            bias_gradients,
        )  # fmt: skip
        return sparse_rows(rows, gradients, self.weight), sparse_rows(rows, bias_gradients, self.bias)

    def _plain(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self.weight.detach().numpy(), self.bias.detach().numpy()

    def _matrices(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Weights, and biases as rows of one."""
        weight, bias = self._plain()
        return weight, bias[:, None]

    def _kept(self) -> tuple[NDArray[Any], ...]:
        """What the optimizer keeps of the weights and of the bias."""
        return self._state.first, self._state.second, self._bias_state.first, self._bias_state.second


def _check_hidden(hidden: Any, columns: int) -> None:
    """ValueError: it is no dense tensor of floating numbers, [batch, columns]."""
    dense = isinstance(hidden, Tensor) and hidden.layout == torch.strided
    if not dense or hidden.is_meta or hidden.is_nested:
        kind = f"{type(hidden).__name__}{f', {hidden.layout}' if isinstance(hidden, Tensor) else ''}"
        error = ValueError(f"hidden is {kind}: a dense tensor, (batch, {columns}), is expected")
        raise coded(error, "not_a_dense_tensor", name="hidden", given=kind)
    if hidden.ndim != 2 or hidden.shape[1] != columns:
        shape = tuple(hidden.shape)
        error = ValueError(f"hidden is {shape}: (batch, {columns}) is expected")
        raise coded(error, "wrong_shape", name="hidden", shape=shape, columns=columns)
    if not hidden.is_floating_point():
        error = ValueError(f"hidden is {hidden.dtype}: a floating dtype is expected")
        raise coded(error, "wrong_dtype", name="hidden", dtype=str(hidden.dtype))


def _forget(layer: SampledLinear, _: object) -> None:
    """Other weights are there, of which none waits. By name, so that a copy of the layer means its own sampler."""
    layer.sampler.forget()
    layer._taught = False
    if isinstance(layer.optimizer, Adam) and layer.optimizer.decay:
        layer._touched[:] = layer.step


def _up_to_date(layer: SampledLinear, *_: object) -> None:
    """Its weights are asked for."""
    layer._catch_up(Crew())


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        _weight: Tensor,
        _bias: Tensor,
        layer: SampledLinear,
        labels: Labels,
        learns: bool,
    ) -> Tensor:
        plain = np.ascontiguousarray(hidden.detach().to("cpu", torch.float32).numpy())
        ctx.save_for_backward(hidden)  # whose memory `plain` may be
        with torch.autocast("cpu", enabled=False):  # samplers have products of their own, of float32
            ctx.layer, ctx.batch = layer, layer._begin(plain, labels, learns)
        ctx.like = hidden.device, hidden.dtype
        return hidden.new_tensor(ctx.batch.loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        batch, ctx.batch = ctx.batch, None
        if batch is None:
            error = RuntimeError("the gradient of this loss has been taken, and can be taken once")
            raise coded(error, "gradient_taken", of="loss")
        ctx.saved_tensors  # noqa: B018 - PyTorch says so if somebody has changed the hidden vectors in place
        _, weight_wanted, bias_wanted, *_ = ctx.needs_input_grad
        hidden, weight, bias = ctx.layer._finish(batch, float(gradient), weight_wanted)
        weight, bias = weight if weight_wanted else None, bias if bias_wanted else None
        return torch.from_numpy(hidden).to(*ctx.like), weight, bias, None, None, None
