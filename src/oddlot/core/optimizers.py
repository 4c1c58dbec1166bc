"""How a direction becomes a step, as plain data. The numerics live with the tensors (`train`)."""

from dataclasses import dataclass
from typing import Annotated

from oddlot.core.errors import UsageError
from oddlot.core.validation import AboveZero, FromZeroBelowOne, NotNegative, check_settings


def _two_from_zero_below_one(betas: object) -> str:
    sound = (
        isinstance(betas, tuple | list)
        and len(betas) == 2
        and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas)
    )
    return "" if sound else "two numbers, each at least 0 and below 1"


Betas = Annotated[tuple[float, float], _two_from_zero_below_one]


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent with optional momentum, as `torch.optim.SGD` computes it."""

    lr: NotNegative = 0.05
    momentum: FromZeroBelowOne = 0.0
    nesterov: bool = False
    weight_decay: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_settings(self)
        if self.nesterov and not self.momentum:
            raise UsageError(
                "nesterov = True needs a momentum above 0", "nesterov_without_momentum", "nesterov"
            )


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam with L2 regularisation (Kingma and Ba, 2015), as `torch.optim.Adam` computes it."""

    lr: NotNegative = 1e-3
    betas: Betas = (0.9, 0.999)
    eps: AboveZero = 1e-8
    weight_decay: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as `torch.optim.AdamW`."""

    lr: NotNegative = 1e-3
    betas: Betas = (0.9, 0.999)
    eps: AboveZero = 1e-8
    weight_decay: NotNegative = 0.01

    def __post_init__(self) -> None:
        check_settings(self)


Optimizer = SGD | Adam | AdamW
