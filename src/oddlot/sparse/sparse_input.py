"""An input layer for sparse features."""

from copy import copy
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version

from oddlot.sparse.errors import check_memory, coded
from oddlot.sparse.kernels import input_layer as kernels
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
"""Offset of the random seed. An output layer with the same seed and size has different random numbers."""


class SparseInputLinear(nn.Module):
    """A linear layer for CSR input. `weight` has a row for each feature, [in_features, out_features].

    `layer(starts, features, values)` returns [batch, out_features], float32. The arguments are the arrays of a CSR
    matrix, as arrays or CPU tensors. Example i has the entries `starts[i]` to `starts[i + 1] - 1`.

    - `starts` (`indptr`): integers [batch + 1], ascending from 0 to the number of entries.
    - `features` (`indices`): integers [entries], from 0 to in_features - 1, in any order.
    - `values` (`data`): numbers [entries], used as float32. Values of a repeated feature are added.

    `backward()` steps with `optimizer` on the rows of the features that occurred or, with `optimizer=None`, gives the
    weight a sparse gradient. The bias has an ordinary gradient. No step is made if a gradient times a value could
    exceed 1e15, or if the weight is frozen. Features out of range and values that are not finite raise ValueError.

    Args:
        in_features: Number of features.
        out_features: Number of outputs.
        optimizer: Optimizer of the rows. If None, gradients are sparse.
        seed: Random seed. If None, PyTorch's random state is used.
        std: Standard deviation of the initial weights.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        optimizer: Optimizer | None = Adam(),  # noqa: B008 - a dataclass of numbers; None has another meaning
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
        """The layer's own copy of the optimizer, whose learning rate can be changed.

        A new optimizer of the same kind keeps the state. One of another kind, or with other `moments`, starts with a
        new state.
        """
        return self._optimizer

    @optimizer.setter
    def optimizer(self, wanted: Optimizer | None) -> None:
        self._check(wanted)
        if wanted is not None and not alike(self._optimizer, wanted):
            self._state, self.step = wanted.state(self.in_features, self.out_features), 0
        self._optimizer = copy(wanted)

    def _check(self, optimizer: Optimizer | None) -> None:
        """Raise ValueError for an invalid optimizer, and MemoryError if the layer would need too much memory."""
        check_optimizer(optimizer)
        if isinstance(optimizer, Adam) and optimizer.decay:
            message = (
                "decay=True works only with SampledLinear: rows of features that do not occur stay unchanged"
            )
            raise coded(ValueError(message), "decay_of_features")
        needed = self.in_features * bytes_of_row(optimizer, self.out_features)
        check_memory(needed, f"a layer of {self.in_features:,} features")

    def forward(self, starts: Any, features: Any, values: Any) -> Tensor:
        """Return the outputs of the examples."""
        shape = self.in_features, self.out_features
        check_parameters(weight=(self.weight, shape), bias=(self.bias, shape[1:]))
        batch = self._checked(starts, as_array(features, "features"), as_array(values, "values"))
        out: Tensor = _Sum.apply(self.weight, self.bias, self, batch)  # type: ignore[no-untyped-call]  # PyTorch's
        return out

    def _checked(self, starts: Any, features: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Return the starts, counts, features and values of the examples. Raise ValueError if they are invalid."""
        if features.ndim != 1 or (features.dtype.kind not in "iu" and features.size):
            dtype, shape = str(features.dtype), features.shape
            error = ValueError(f"features must be a 1-D array of whole numbers, not {dtype} {shape}")
            raise coded(error, "not_1d_integers", name="features", dtype=dtype, shape=shape)
        if values.shape != (expected := features.shape):
            error = ValueError(
                f"there are {len(features)} features, but {values.size} values: pass one for each"
            )
            raise coded(error, "different_lengths", name="values", given=values.size, expected=expected[0])
        if values.dtype.kind not in "biuf":
            error = ValueError(f"values must be real numbers, not {values.dtype}")
            raise coded(error, "wrong_dtype", name="values", dtype=str(values.dtype))
        starts = checked_starts(starts, len(features), "features")
        if len(features) and not 0 <= int(features.min()) <= int(features.max()) < self.in_features:
            wrong = min(int(features.min()), 0) or int(features.max())
            error = ValueError(f"feature {wrong} is out of range: features are 0 to {self.in_features - 1:,}")
            raise coded(error, "out_of_range", name="features", given=wrong, size=self.in_features)
        with np.errstate(over="ignore"):
            numbers = values.astype(np.float32)
        if not np.isfinite(numbers).all():
            row = int(np.searchsorted(starts, np.flatnonzero(~np.isfinite(numbers))[0], "right")) - 1
            error = ValueError(f"a value of example {row} of the batch is not finite")
            raise coded(error, "not_finite", name="values", row=row)
        return starts[:-1], np.diff(starts), features.astype(np.int32), numbers

    def extra_repr(self) -> str:
        """Return the text that `repr` shows in the parentheses."""
        return f"{self.in_features}, {self.out_features}, {self.optimizer}"

    def _sum(self, batch: tuple[NDArray[Any], ...]) -> NDArray[np.float32]:
        out = np.empty((len(batch[1]), self.out_features), np.float32)
        Crew.of(len(out)).share(
            kernels.forward, *batch, self.weight.detach().numpy(), self.bias.detach().numpy(), out
        )
        return out

    def _finish(self, batch: tuple[NDArray[Any], ...], gradients: NDArray[np.float32]) -> Tensor | None:
        """Step on the rows of the batch, unless gradients could exceed 1e15.

        Without an optimizer, return the sparse gradient of the weight instead.
        """
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
            error = RuntimeError("backward() of this output was called before: it can be called only once")
            raise coded(error, "gradient_taken", of="sum")
        weight, plain = None, np.ascontiguousarray(gradient.numpy())
        if ctx.needs_input_grad[0]:
            weight = ctx.layer._finish(batch, plain)
        return weight, torch.from_numpy(plain.sum(0)), None, None
