"""An input layer on rows of few numbers each."""

from copy import copy
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from oddlot.sparse.errors import coded
from oddlot.sparse.kernels import input as kernels
from oddlot.sparse.memory import check_memory
from oddlot.sparse.optimizers import Adam, Optimizer, alike, bytes_of_row, check_optimizer, checked_numbers
from oddlot.sparse.pairs import Pairs, sparse_rows
from oddlot.sparse.threads import Crew
from oddlot.sparse.validation import (
    MAX_SEED,
    TOO_LARGE,
    as_array,
    check_number,
    check_parameters,
    check_whole,
    checked_starts,
)

STREAM = 0x9E3779B9
"""so that an output layer of the same seed and width begins with other weights"""


class SparseInputLinear(nn.Module):
    """A linear layer on CSR input, [batch, in_features]: `weight` has a row for each feature, [in_features,
    out_features].

    `layer(starts, features, values)` is [batch, out_features], float32: example i has the values
    values[starts[i]:starts[i + 1]] in those features, in any order; of a feature that occurs twice they add up. Its
    backward steps at once on the rows of features that occurred (where a gradient times a value could be above 1e15
    they stay as they are) or, with `optimizer=None`, gives these a sparse gradient; the bias has an ordinary one. A
    weight that is frozen stays. Features out of range and values that are not finite are a ValueError. `seed=None`
    draws the first weights from PyTorch's random state.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        optimizer: Optimizer | None = Adam(),  # noqa: B008 - a dataclass of numbers; None is another wish
        seed: int | None = 0,
        std: float = 0.3,
    ) -> None:
        super().__init__()
        check_whole(in_features=in_features, out_features=out_features)
        check_whole(0, MAX_SEED, seed=0 if seed is None else seed)
        check_number(0, inf, std=std)
        self.in_features, self.out_features = in_features, out_features
        self._check(optimizer)
        chance = None if seed is None else torch.Generator().manual_seed((int(seed) + STREAM) % 2**32)
        self.weight = nn.Parameter(
            torch.randn(in_features, out_features, generator=chance, dtype=torch.float32, device="cpu").mul_(
                std
            )
        )
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=torch.float32, device="cpu"))
        self._optimizer: Optimizer | None = None
        self.step = 0
        self.optimizer = optimizer
        self._free: list[Pairs] = []

    @property
    def optimizer(self) -> Optimizer | None:
        """The layer's own copy, whose rate may be changed. Another one of the same kind goes on with what was kept; one
        of another kind, or with other moments, begins anew."""
        return self._optimizer

    @optimizer.setter
    def optimizer(self, wanted: Optimizer | None) -> None:
        self._check(wanted)
        if wanted is not None and not alike(self._optimizer, wanted):
            self._state, self.step = wanted.state(self.in_features, self.out_features), 0
        self._optimizer = copy(wanted)

    def _check(self, optimizer: Optimizer | None) -> None:
        """ValueError: it is none for features. MemoryError: with it the layer is too large for this machine."""
        check_optimizer(optimizer)
        if isinstance(optimizer, Adam) and optimizer.decay:
            told = "decay is for SampledLinear: features that do not occur stay where they are"
            raise coded(ValueError(told), "decay_of_features")
        needed = self.in_features * bytes_of_row(optimizer, self.out_features)
        check_memory(needed, f"a layer of {self.in_features:,} features")

    def forward(self, starts: Any, features: Any, values: Any) -> Tensor:
        """The sums of the examples' rows, and the bias."""
        shape = self.in_features, self.out_features
        check_parameters(weight=(self.weight, shape), bias=(self.bias, shape[1:]))
        batch = self._checked(starts, as_array(features, "features"), as_array(values, "values"))
        out: Tensor = _Sum.apply(self.weight, self.bias, self, batch)  # type: ignore[no-untyped-call]  # PyTorch's
        return out

    def _checked(self, starts: Any, features: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Where examples begin, how many features they have, which, and their values."""
        if features.ndim != 1 or (features.dtype.kind not in "iu" and features.size):
            dtype, shape = str(features.dtype), features.shape
            error = ValueError(f"features are {dtype} {shape}: a 1-D array of whole numbers")
            raise coded(error, "not_1d_integers", name="features", dtype=dtype, shape=shape)
        if values.shape != (expected := features.shape):
            error = ValueError(f"{len(features)} features have {values.size} values, one each is expected")
            raise coded(error, "different_lengths", name="values", given=values.size, expected=expected[0])
        if values.dtype.kind not in "biuf":
            error = ValueError(f"values are {values.dtype}: real numbers are expected")
            raise coded(error, "wrong_dtype", name="values", dtype=str(values.dtype))
        starts = checked_starts(starts, len(features), "features")
        if len(features) and not 0 <= int(features.min()) <= int(features.max()) < self.in_features:
            wrong = min(int(features.min()), 0) or int(features.max())
            error = ValueError(f"the feature {wrong} is not among the {self.in_features:,}")
            raise coded(error, "out_of_range", name="features", given=wrong, size=self.in_features)
        with np.errstate(over="ignore"):
            numbers = values.astype(np.float32)
        if not np.isfinite(numbers).all():
            row = int(np.searchsorted(starts, np.flatnonzero(~np.isfinite(numbers))[0], "right")) - 1
            error = ValueError(f"a value of example {row} of the batch is not finite")
            raise coded(error, "not_finite", name="values", row=row)
        return starts[:-1], np.diff(starts), features.astype(np.int32), numbers

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.optimizer}"

    def _sum(self, batch: tuple[NDArray[Any], ...]) -> NDArray[np.float32]:
        out = np.empty((len(batch[1]), self.out_features), np.float32)
        Crew.of(len(out)).share(
            kernels.forward, *batch, self.weight.detach().numpy(), self.bias.detach().numpy(), out
        )
        return out

    def _finish(self, batch: tuple[NDArray[Any], ...], gradients: NDArray[np.float32]) -> Tensor | None:
        """Step on the rows that were summed, unless their gradients could be above 1e15; without optimizer, their
        gradients."""
        crew, (begins, counts, features, values) = Crew(), batch
        largest = np.abs(gradients).max(initial=0.0) * np.abs(values).max(initial=0.0)
        if self.optimizer is not None and not largest < TOO_LARGE:
            return None
        numbers = None if self.optimizer is None else checked_numbers(self.optimizer, self.step + 1)
        self.step += 1
        pairs = self._free.pop() if self._free else Pairs(self.in_features)
        pairs.group(crew, begins, counts, features)
        found = None
        if self.optimizer is None:
            total = pairs.touched
            rows, collected = np.empty(total, np.int64), np.empty((total, self.out_features), np.float32)
            crew.share(kernels.collect, *pairs.sorted, values, gradients, pairs.places, rows, collected)
            found = sparse_rows(rows, collected, self.weight)
        else:
            crew.share(
                kernels.backward, *pairs.sorted, values, self.weight.detach().numpy(), gradients, self.optimizer.kind,
                self._state.first, self._state.second, numbers,
            )  # fmt: skip
            increment_version(self.weight)
        self._free.append(pairs)
        return found


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _weight: Tensor, _bias: Tensor, layer: SparseInputLinear, batch: Any) -> Tensor:
        ctx.layer, ctx.batch = layer, batch
        return torch.from_numpy(layer._sum(batch))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        batch, ctx.batch = ctx.batch, None
        if batch is None:
            error = RuntimeError("the gradient of this sum has been taken, and can be taken once")
            raise coded(error, "gradient_taken", of="sum")
        weight, plain = None, np.ascontiguousarray(gradient.numpy())
        if ctx.needs_input_grad[0]:
            weight = ctx.layer._finish(batch, plain)
        return weight, torch.from_numpy(plain.sum(0)), None, None
