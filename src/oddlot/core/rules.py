"""How a direction becomes a step, as plain data. The numerics live with the tensors (`train`)."""

from dataclasses import dataclass

from oddlot.core.checks import check_hints, not_negative
from oddlot.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent with optional momentum, as `torch.optim.SGD` computes it."""

    lr: float = 0.05
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_hints(self)
        not_negative(lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.momentum >= 1:
            raise UsageError(
                f"momentum = {self.momentum} must be below 1: nothing it gathers would ever fade"
            )
        if self.nesterov and not self.momentum:
            raise UsageError("nesterov = True needs a momentum above 0")


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam with L2 regularisation (Kingma and Ba, 2015), as `torch.optim.Adam` computes it."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_adam(self)


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as `torch.optim.AdamW`."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _check_adam(self)


Rule = SGD | Adam | AdamW


def _check_adam(rule: Adam | AdamW) -> None:
    check_hints(rule)
    not_negative(lr=rule.lr, eps=rule.eps, weight_decay=rule.weight_decay)
    if not rule.eps:
        raise UsageError("eps = 0 divides by zero where a gradient is zero: take a small number")
    betas: tuple[float, ...] = rule.betas
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise UsageError(f"betas = {rule.betas} must be two numbers, each at least 0 and below 1")
