"""How a direction becomes a step, as plain data. The numerics live with the tensors (`train`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent with optional momentum, as `torch.optim.SGD` computes it."""

    lr: float = 0.05
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam with L2 regularisation (Kingma and Ba, 2015), as `torch.optim.Adam` computes it."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as `torch.optim.AdamW`."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01


Rule = SGD | Adam | AdamW
