"""Settings of the hub's optimizers. Their arithmetic is in `oddlot.model.optimizer_math`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from oddlot.core.support.errors import UsageError
from oddlot.core.support.serialization import saved_by_place
from oddlot.core.support.validation import AboveZero, NotNegative, WithinOne, check_settings


def _two_from_zero_below_one(betas: object) -> str:
    sound = (
        isinstance(betas, tuple | list)
        and len(betas) == 2
        and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas)
    )
    return "" if sound else "two numbers, each at least 0 and below 1"


Betas = Annotated[tuple[float, float], _two_from_zero_below_one]


@saved_by_place
class Optimizer:
    """Base class of the settings of the hub's optimizers: dataclasses with a learning rate.

    Your own optimizer is a dataclass that subclasses it and has `hub_optimizer`. Its fields are plain data, so
    that they can be saved.
    """

    __slots__ = ()

    lr: float

    def hub_optimizer(self, sections: Mapping[int, Any]) -> Any:
        """Return a new `HubOptimizer` (`oddlot.model.optimizer_math`) for these 1-D tensors of trainable parameters.

        SGD, Adam and AdamW do not define it, because the hub implements them. Raise UsageError if a subclass does not
        define it.
        """
        name = type(self).__name__
        message = f"{name} cannot be used at the hub: give it a method hub_optimizer(sections)"
        raise UsageError(message, "optimizer_without_arithmetic", "optimizer", given=name)


@dataclass(frozen=True, slots=True)
class SGD(Optimizer):
    """Stochastic gradient descent with optional momentum, as `torch.optim.SGD` computes it.

    A negative momentum compensates for the implicit momentum of many asynchronous workers (Mitliagkas et al.,
    "Asynchrony begets Momentum", 2016).
    """

    lr: NotNegative = 0.05
    """Learning rate."""
    momentum: WithinOne = 0.0
    """Momentum factor, above -1 and below 1."""
    nesterov: bool = False
    """Whether to use Nesterov momentum."""
    weight_decay: NotNegative = 0.0
    """Weight decay (L2 penalty)."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.nesterov and self.momentum <= 0:
            raise UsageError(
                "nesterov = True needs a momentum above 0", "nesterov_without_momentum", "nesterov"
            )


@dataclass(frozen=True, slots=True)
class Adam(Optimizer):
    """Adam with L2 regularization (Kingma and Ba, 2015), as `torch.optim.Adam` computes it."""

    lr: NotNegative = 1e-3
    """Learning rate."""
    betas: Betas = (0.9, 0.999)
    """Decay rates of the running means of the gradient and its square, each at least 0 and below 1."""
    eps: AboveZero = 1e-8
    """Term added to the denominator for numerical stability."""
    weight_decay: NotNegative = 0.0
    """Weight decay (L2 penalty)."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as `torch.optim.AdamW`."""

    lr: NotNegative = 1e-3
    """Learning rate."""
    betas: Betas = (0.9, 0.999)
    """Decay rates of the running means of the gradient and its square, each at least 0 and below 1."""
    eps: AboveZero = 1e-8
    """Term added to the denominator for numerical stability."""
    weight_decay: NotNegative = 0.01
    """Decoupled weight decay."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True)
class ParameterGroups(Optimizer):
    """Optimizers of the same kind for several groups of parameters, as `torch.optim` has them.

    `Job(optimizer=lambda model: torch.optim.AdamW([...]))` becomes one for the job's model.
    """

    optimizers: tuple[Optimizer, ...]
    """Optimizer of each group."""
    names: tuple[tuple[str, ...], ...]
    """Names of the parameters of each group. Other parameters are not trained."""

    @property
    def lr(self) -> float:  # type: ignore[override]  # groups have their own
        """Learning rate of the first group."""
        return self.optimizers[0].lr

    @property
    def by_group(self) -> dict[int, Optimizer]:
        """Optimizers by group. The last one is for the parameters that are not trained, outside of all schedules."""
        return dict(enumerate([*self.optimizers, SGD(lr=0.0)]))

    def group_of(self, name: str) -> int:
        """Return the group of a parameter."""
        return next((at for at, names in enumerate(self.names) if name in names), len(self.names))
