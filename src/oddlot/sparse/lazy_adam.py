"""Adam as a PyTorch optimizer for both sparse and dense gradients."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from oddlot.sparse import optimizers
from oddlot.sparse.errors import coded
from oddlot.sparse.kernels import row_operations
from oddlot.sparse.threads import Crew

SMALL = 1 << 13
"""Maximum size of a gradient for one thread."""


class LazyAdam(torch.optim.Optimizer):
    """Adam (Kingma, Ba, ICLR 2015) that steps only on rows with a gradient.

    Use it for networks with `optimizer=None` layers of this package. It accepts both sparse and dense gradients, while
    `torch.optim.Adam` accepts only dense and `torch.optim.SparseAdam` only sparse gradients. With a dense gradient it
    equals `torch.optim.Adam`. Raise ValueError unless parameters are contiguous float32 tensors on the CPU.

    Args:
        params: Parameters, or parameter groups.
        lr: Learning rate.
        betas: Decay rates of the running means of the gradient and its square.
        eps: Term added to the denominator for numerical stability.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with their own settings. Raise ValueError for invalid parameters or settings."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        optimizers.Adam(group["lr"], group["betas"], group["eps"])  # checks the settings
        for parameter in group["params"]:
            _check(parameter)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # PyTorch has overloads
        """Make one step on all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        crew = Crew()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(crew, group, parameter)
        return loss

    def _step(self, crew: Crew, group: dict[str, Any], parameter: Tensor) -> None:
        _check(parameter)
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        how = optimizers.Adam(group["lr"], group["betas"], group["eps"]).numbers(state["step"])
        whole = parameter, state["exp_avg"], state["exp_avg_sq"]
        weight, first, second = (one.detach().view(_rows(parameter)).numpy() for one in whole)
        rows, gradients = _gradient(parameter)
        crew = crew if gradients.size > SMALL else Crew(1)
        crew.share(row_operations.adam_rows, rows, gradients, weight, first, second, how)
        increment_version(parameter)  # PyTorch then rejects backward passes of earlier results


def _check(parameter: Tensor) -> None:
    if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
        given = {"dtype": str(parameter.dtype), "device": str(parameter.device)}
        error = ValueError("a parameter is {dtype} on {device}, but must be float32 on cpu".format(**given))
        raise coded(error, "wrong_parameter", **given)
    if not parameter.is_contiguous():
        message = "a parameter is not contiguous, as with channels_last: use .contiguous()"
        raise coded(ValueError(message), "not_contiguous", shape=tuple(parameter.shape))


def _rows(parameter: Tensor) -> tuple[int, int]:
    """Return the shape of a parameter as a matrix."""
    rows = len(parameter) if parameter.ndim else 1
    return rows, parameter.numel() // max(1, rows)


def _gradient(parameter: Tensor) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the rows that have a gradient, and their gradients."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.is_sparse:
        if gradient.sparse_dim() != 1:
            error = ValueError("a sparse gradient must have one sparse dimension, of whole rows")
            raise coded(error, "wrong_gradient", sparse_dim=gradient.sparse_dim())
        gradient = gradient.coalesce()
        values = gradient._values().contiguous().view(-1, _rows(parameter)[1])
        return gradient._indices()[0].numpy(), values.numpy()
    return np.arange(_rows(parameter)[0]), gradient.contiguous().view(_rows(parameter)).numpy()
