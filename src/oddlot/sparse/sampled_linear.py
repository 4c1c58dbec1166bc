"""An output layer that computes only a few of its rows for each example."""

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

from oddlot.sparse.active_set import ActiveSet, Labels, Marks
from oddlot.sparse.errors import check_memory, coded
from oddlot.sparse.kernels import output_layer
from oddlot.sparse.optimizers import Adam, Optimizer, alike, bytes_of_row, check_optimizer, checked_numbers
from oddlot.sparse.pairs import Pairs, chunks_for, sparse_rows
from oddlot.sparse.sampler import Sampler, check_sampler
from oddlot.sparse.samplers import Clusters
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import MAX_SEED, TOO_LARGE, check_number, check_parameters, check_whole

logger = logging.getLogger(__name__)
STREAM, STEP = 1_000_003, 2_654_435_761
"""Odd numbers that separate the random streams of layers and steps."""


@dataclass
class Batch:
    """State between a loss and its gradient."""

    active: ActiveSet
    pairs: Pairs
    hidden: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    loss: float = 0.0
    labelled: int = 0
    """Examples with a label."""


class SampledLinear(nn.Module):
    """A linear output layer with a sampled softmax loss: only a few of its rows are computed for each example.

    - `layer(hidden, labels)` returns the loss, a scalar: the mean cross entropy over the labels and the rows that the
      sampler chooses.
    - `layer(hidden)` returns all logits, [batch, out_features].

    `backward()` of the loss computes the gradient of `hidden` and steps with `optimizer` on the computed rows. They
    have no `.grad`. With `optimizer=None`, weight and bias get sparse gradients for a PyTorch optimizer such as
    `LazyAdam`.

    Args:
        in_features: Size of the hidden vectors.
        out_features: Number of outputs.
        sampler: Sampler of rows in addition to the labels. Default: `Clusters()`.
        optimizer: Optimizer of the rows. If None, gradients are sparse.
        seed: Random seed. If None, PyTorch's random state is used, like in dropout.
        std: Standard deviation of the initial weights. Default: 1/sqrt(in_features).

    `hidden` is [batch, in_features], of any floating dtype on any device. The rows are float32 on the CPU.

    `labels` is a 1-D tensor (one label each; -1: none), a 2-D tensor padded with -1 (several labels), or the arrays
    (starts, labels) of a CSR matrix. Several labels share the target equally. An example without labels has no effect.

    Special cases:

    - Labels out of range raise ValueError.
    - If the loss of a batch is not finite, or its gradient could exceed 1e15, no row changes. The gradient of `hidden`
      is NaN.
    - Under `torch.no_grad()`, or if weight and bias are frozen, no step is made.
    - Only one thread at a time may compute losses. Several may compute logits, except with `Adam(decay=True)`.

    Results are reproducible bit for bit with the same seed and inputs, on any number of threads. `state_dict()` has
    only the weights: after loading, the sampler's index is rebuilt, and the optimizer keeps its state. A pickled layer
    has everything.

    Papers: Chen et al., "SLIDE" (MLSys 2020), for the idea; Bengio, Senécal (2008), for the log Q correction of sampled
    softmax. Rows that the sampler found count once, and randomly drawn rows for the rows that they represent.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sampler: Sampler | None = None,
        optimizer: Optimizer | None = Adam(),  # noqa: B008 - a dataclass of numbers; None has another meaning
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
        """Number of losses in training."""
        self.step = 0
        """Number of steps on the rows."""
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
        """Whether the sampler has seen a training batch since the rows were replaced."""
        self._free: list[Batch] = []
        self.active_rows, self.chance_share = 0.0, 0.0
        """Mean number of rows per labeled example of the last batch, and the share of them that were drawn randomly."""
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]  # PyTorch's
        self.register_state_dict_pre_hook(_up_to_date)  # type: ignore[no-untyped-call]  # PyTorch's

    @property
    def sampler(self) -> Sampler:
        """The sampler. It can be replaced at any time. None sets `Clusters()`."""
        return self._sampler

    @sampler.setter
    def sampler(self, wanted: Sampler | None) -> None:
        check_sampler(wanted)
        self._check_together(wanted, getattr(self, "_optimizer", None))
        self._sampler: Sampler = Clusters() if wanted is None else wanted
        self._token = object()
        """Identifies the layer for its sampler. The sampler of a copied layer has the copy's token."""

    @property
    def optimizer(self) -> Optimizer | None:
        """The layer's own copy of the optimizer, whose learning rate can be changed.

        A new optimizer of the same kind keeps the state. One of another kind, or with other `moments` or `decay`,
        starts with a new state.
        """
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
        """Raise ValueError for an invalid optimizer, and MemoryError if the layer would need too much memory."""
        check_optimizer(optimizer)
        needed = self.out_features * bytes_of_row(optimizer, self.in_features)
        check_memory(needed, f"a layer of {self.out_features:,} outputs")

    @staticmethod
    def _check_together(sampler: Sampler | None, optimizer: Optimizer | None) -> None:
        """Raise ValueError if the optimizer changes rows that the sampler assumes to be unchanged."""
        if getattr(sampler, "changed_only", False) and isinstance(optimizer, Adam) and optimizer.decay:
            message = (
                "changed_only=True does not work with decay=True, which moves all rows: use only one of them"
            )
            raise coded(ValueError(message), "changed_only_with_decay")

    def _keep_for(self, optimizer: Optimizer | None) -> None:
        """Allocate a new state of the optimizer."""
        self.step = 0
        if optimizer is not None:
            self._state = optimizer.state(self.out_features, self.in_features)
            self._bias_state = optimizer.state(self.out_features, 1)
        if isinstance(optimizer, Adam) and optimizer.decay:
            self._touched = np.zeros(self.out_features, np.int64)

    def forward(self, hidden: Tensor, labels: Any = None) -> Tensor:
        """Return the mean loss of the batch, or all logits without labels."""
        _check_hidden(hidden, self.in_features)
        shape = self.out_features, self.in_features
        check_parameters(weight=(self.weight, shape), bias=(self.bias, shape[:1]))
        if labels is None:
            self._catch_up(Crew())
            return nn.functional.linear(hidden.to(self.weight), self.weight, self.bias).to(hidden)
        targets = Labels.of(labels, self.out_features)
        if len(targets) != len(hidden):
            error = ValueError(
                f"there are {len(hidden)} hidden vectors, but labels of {len(targets)} examples"
            )
            raise coded(error, "different_lengths", name="labels", given=len(targets), expected=len(hidden))
        if self.optimizer is not None and self.weight.requires_grad != self.bias.requires_grad:
            message = "the optimizer updates weight and bias together: freeze both, or use optimizer=None"
            raise coded(ValueError(message), "frozen_apart")
        self.batches += (learns := torch.is_grad_enabled())
        loss: Tensor = _Loss.apply(hidden, self.weight, self.bias, self, targets, learns)  # type: ignore[no-untyped-call]  # PyTorch's
        return loss

    def extra_repr(self) -> str:
        """Return the text that `repr` shows in the parentheses."""
        return f"{self.in_features}, {self.out_features}, {self.sampler}, {self.optimizer}"

    # --- the two halves of a step ----------------------------------------------------------------

    def _begin(self, hidden: NDArray[np.float32], labels: Labels, learns: bool = True) -> Batch:
        """Choose the active sets, and compute their loss and its gradient with respect to the logits."""
        learns = learns and bool(np.isfinite(hidden).all())  # samplers ignore batches that are not finite
        crew, (weight, bias), chance = Crew(), self._plain(), self._chance()
        batch = (
            self._free.pop() if self._free else Batch(ActiveSet(self.out_features), Pairs(self.out_features))
        )
        active, batch.hidden = batch.active, hidden
        self._own_sampler(learns)
        self.sampler.prepare(crew, weight, bias, self.batches, chance)
        active.begin(crew, labels, self.sampler.most(self.out_features), self._marks, learns)
        self.sampler.choose(crew, hidden, active, chance)
        unlabelled = active.labels == 0  # they have no effect on their rows
        active.counts[unlabelled] = active.sure[unlabelled] = 0
        total, sure = int(active.counts.sum()), int(active.sure.sum())
        batch.labelled = max(1, int((active.labels > 0).sum()))
        self.active_rows, self.chance_share = total / batch.labelled, (total - sure) / max(1, total)
        if learns and self.batches == 1:
            message = "first batch: %.0f rows per example, %.0f %% of them drawn randomly"
            logger.info(message, self.active_rows, 100 * self.chance_share)
        batch.pairs.group(
            crew, active.starts, active.counts, active.rows, chunks_for(total, len(active.counts))
        )
        self._catch_up(crew, batch.pairs)
        crew.share(output_layer.forward, *batch.pairs.sorted, weight, bias, hidden, active.logits)
        crew.share(
            output_layer.softmax, active.starts, active.counts, active.labels, active.sure, active.log_weights,
            active.logits, active.deltas, active.losses,
        )  # fmt: skip
        batch.loss = float(active.losses.sum()) / batch.labelled
        return batch

    def _own_sampler(self, learns: bool) -> None:
        """Reset the sampler if its index is from another layer, or from an evaluation before training."""
        is_own = getattr(self.sampler, "layer", None) is self._token
        if not is_own or (learns and not self._taught):
            self.sampler.forget()
            self.sampler.layer = self._token  # type: ignore[attr-defined]  # set on any kind of sampler
            self._taught = learns

    def _chance(self) -> int:
        """Return the seed of this batch."""
        if self.seed is None:
            return int(torch.randint(2**62, ()))
        return (self.seed * STREAM + self.batches) * STEP % 2**62

    def _catch_up(self, crew: Crew, pairs: Pairs | None = None) -> None:
        """Apply the skipped steps of dense Adam to the rows of a batch, or to all rows."""
        if not isinstance(self.optimizer, Adam) or not self.optimizer.decay:
            return
        rows = np.arange(self.out_features, dtype=np.int32) if pairs is None else pairs.rows
        crew.share(
            output_layer.catch_up_rows, rows, *self._matrices(), *self._kept(),
            checked_numbers(self.optimizer, max(1, self.step)), self._touched, self.step, self._corrections,
        )  # fmt: skip

    def _finish(
        self, batch: Batch, scale: float, wanted: bool
    ) -> tuple[NDArray[np.float32], Tensor | None, Tensor | None]:
        """Step on the computed rows, if their gradients are `wanted`.

        Return the gradients of the hidden vectors and, without an optimizer, of weight and bias.
        """
        crew, active = Crew(), batch.active
        hidden_gradients = np.empty((len(batch.pairs.rows_of), *batch.hidden.shape), np.float32)
        by_deltas = active.deltas, np.float32(scale / batch.labelled), hidden_gradients
        rows: tuple[Tensor | None, Tensor | None] = (None, None)
        # The absolute deltas of an example add up to at most 2, and the loss is a mean over examples.
        largest = abs(scale) * float(np.abs(batch.hidden[active.labels > 0]).max(initial=0.0))
        if not isfinite(batch.loss * scale) or not largest < TOO_LARGE:
            hidden_gradients[:] = np.nan
        elif self.optimizer is None or not wanted:
            rows = self._collected(crew, batch, *by_deltas)
        else:
            self._catch_up(crew, batch.pairs)  # other losses may have updated the rows since
            numbers = checked_numbers(self.optimizer, self.step + 1)
            self.step += 1
            crew.share(
                output_layer.backward, *batch.pairs.sorted, *self._matrices(), batch.hidden, *by_deltas,
                self.optimizer.kind, *self._kept(), numbers,
            )  # fmt: skip
            if isinstance(self.optimizer, Adam) and self.optimizer.decay:
                self._touched[batch.pairs.rows] = self.step
            for changed in (self.weight, self.bias):
                increment_version(changed)  # PyTorch then rejects backward passes of earlier logits
        self._free.append(batch)
        return hidden_gradients.sum(0), *rows

    def _collected(self, crew: Crew, batch: Batch, *by_deltas: Any) -> tuple[Tensor, Tensor]:
        """Return the sparse gradients of weight and bias."""
        total = batch.pairs.touched
        rows, gradients = np.empty(total, np.int64), np.empty((total, self.in_features), np.float32)
        bias_gradients = np.empty(total, np.float32)
        weight, _ = self._plain()
        crew.share(
            output_layer.collect, *batch.pairs.sorted, weight, batch.hidden, *by_deltas, batch.pairs.places,
            rows, gradients, bias_gradients,
        )  # fmt: skip
        return sparse_rows(rows, gradients, self.weight), sparse_rows(rows, bias_gradients, self.bias)

    def _plain(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self.weight.detach().numpy(), self.bias.detach().numpy()

    def _matrices(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the weights, and the biases as a matrix with one column."""
        weight, bias = self._plain()
        return weight, bias[:, None]

    def _kept(self) -> tuple[NDArray[Any], ...]:
        """Return the optimizer state of the weights and of the bias."""
        return self._state.first, self._state.second, self._bias_state.first, self._bias_state.second


def _check_hidden(hidden: Any, columns: int) -> None:
    """Raise ValueError unless it is a dense floating-point tensor, [batch, columns]."""
    dense = isinstance(hidden, Tensor) and hidden.layout == torch.strided
    if not dense or hidden.is_meta or hidden.is_nested:
        kind = f"{type(hidden).__name__}{f', {hidden.layout}' if isinstance(hidden, Tensor) else ''}"
        error = ValueError(f"hidden must be a dense tensor (batch, {columns}), not {kind}")
        raise coded(error, "not_a_dense_tensor", name="hidden", given=kind)
    if hidden.ndim != 2 or hidden.shape[1] != columns:
        shape = tuple(hidden.shape)
        error = ValueError(f"hidden must have the shape (batch, {columns}), not {shape}")
        raise coded(error, "wrong_shape", name="hidden", shape=shape, columns=columns)
    if not hidden.is_floating_point():
        error = ValueError(f"hidden must have a floating-point dtype, not {hidden.dtype}")
        raise coded(error, "wrong_dtype", name="hidden", dtype=str(hidden.dtype))


def _forget(layer: SampledLinear, _: object) -> None:
    """Reset the sampler after new weights were loaded.

    This is not a method, because a copied layer must reset its own sampler.
    """
    layer.sampler.forget()
    layer._taught = False
    if isinstance(layer.optimizer, Adam) and layer.optimizer.decay:
        layer._touched[:] = layer.step


def _up_to_date(layer: SampledLinear, *_: object) -> None:
    """Bring all rows up to date before their weights are saved."""
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
        ctx.save_for_backward(hidden)  # `plain` may share its memory
        with torch.autocast("cpu", enabled=False):  # samplers compute in float32
            ctx.layer, ctx.batch = layer, layer._begin(plain, labels, learns)
        ctx.like = hidden.device, hidden.dtype
        return hidden.new_tensor(ctx.batch.loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        batch, ctx.batch = ctx.batch, None
        if batch is None:
            error = RuntimeError("backward() of this loss was called before: it can be called only once")
            raise coded(error, "gradient_taken", of="loss")
        ctx.saved_tensors  # noqa: B018 - PyTorch raises an error if the hidden vectors were changed in place
        _, weight_wanted, bias_wanted, *_ = ctx.needs_input_grad
        hidden, weight, bias = ctx.layer._finish(batch, float(gradient), weight_wanted)
        weight, bias = weight if weight_wanted else None, bias if bias_wanted else None
        return torch.from_numpy(hidden).to(*ctx.like), weight, bias, None, None, None
