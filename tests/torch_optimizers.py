"""PyTorch's equivalents of oddlot's optimizers, for comparisons."""

from collections.abc import Iterable

import torch
from torch import Tensor

from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer


def torch_optimizer(rule: Optimizer, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Return PyTorch's optimizer with the same name and settings."""
    match rule:
        case SGD(lr, momentum, nesterov, decay):
            return torch.optim.SGD(parameters, lr, momentum, nesterov=nesterov, weight_decay=decay)
        case Adam(lr, betas, eps, decay):
            return torch.optim.Adam(parameters, lr, betas, eps, decay)
        case AdamW(lr, betas, eps, decay):
            return torch.optim.AdamW(parameters, lr, betas, eps, decay)
    raise TypeError(f"PyTorch has no {rule}")
