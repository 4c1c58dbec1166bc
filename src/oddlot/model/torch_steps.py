"""Steps of `SGD`, `Adam` and `AdamW` with the functions of `torch.optim`, so that they have the same bits.

The classes of `torch.optim` would import PyTorch's compiler on first use, for several seconds during a task.
"""

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from oddlot.core.optimizers import SGD, Adam, AdamW

Tensors = list[Tensor]


def sgd_step(
    rule: SGD,
    lr: float,
    parameters: Tensors,
    gradients: Tensors,
    momenta: list[Tensor | None],
    *,
    is_sparse: bool = False,
) -> None:
    """Make a step of SGD in place. A momentum of None becomes a new tensor in the list, unless `rule` has none."""
    sgd(
        parameters,
        gradients,
        momenta,
        has_sparse_grad=is_sparse,
        weight_decay=rule.weight_decay,
        momentum=rule.momentum,
        lr=lr,
        dampening=0.0,
        nesterov=rule.nesterov,
        maximize=False,
    )


def adam_step(
    rule: Adam | AdamW,
    lr: float,
    parameters: Tensors,
    gradients: Tensors,
    means: Tensors,
    squares: Tensors,
    steps: Tensors,
) -> None:
    """Make a step of Adam or AdamW in place. `steps` are the numbers of earlier steps, and grow by 1."""
    step = adamw if isinstance(rule, AdamW) else adam
    step(
        parameters,
        gradients,
        means,
        squares,
        [],
        steps,
        amsgrad=False,
        beta1=rule.betas[0],
        beta2=rule.betas[1],
        lr=lr,
        weight_decay=rule.weight_decay,
        eps=rule.eps,
        maximize=False,
        has_complex=any(one.is_complex() for one in parameters),
    )


def step_count(steps: int) -> Tensor:
    """Return a number of steps as a tensor, like `torch.optim`."""
    wide = torch.get_default_dtype() == torch.float64
    dtype = torch.float64 if wide else torch.float32
    return torch.tensor(float(steps), dtype=dtype, device="cpu")
