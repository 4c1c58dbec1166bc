"""Optimizers that step on a row as soon as its gradient is known, and leave other rows unchanged."""

from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.errors import coded, invalid_value
from oddlot.sparse.kernels import row_operations as kernels
from oddlot.sparse.validation import check_flag, check_number

MAX_CORRECTED = 1 << 22
"""Largest number of steps with a stored bias correction."""
EPSILON = 2.0**-24
"""Half the spacing of float32 near 1."""
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
STEPS_IN_FULL = 1 << 24
"""Number of steps that float32 can represent exactly."""
Moments = Literal["fp32", "bf16"]


@dataclass
class RowState:
    """The optimizer state of a matrix. `first` and `second` have a row for each row of the matrix, or one row in
    all."""

    first: NDArray[Any]
    second: NDArray[Any]

    @classmethod
    def of(cls, first: tuple[int, int], second: tuple[int, int], kind: Any = np.float32) -> "RowState":
        """Return zeros of these shapes. bfloat16 is stored as uint16."""
        return cls(np.zeros(first, kind), np.zeros(second, kind))


@dataclass
class SGD:
    """Stochastic gradient descent without momentum: `w -= lr g`."""

    lr: float = 0.1
    """Learning rate."""
    kind: ClassVar[int] = kernels.SGD

    def __post_init__(self) -> None:
        check_number(0, LARGEST, lr=self.lr)

    def state(self, rows: int, columns: int) -> RowState:
        """Return a new state for a matrix."""
        return RowState.of((1, columns), (1, 1))

    def numbers(self, step: int) -> NDArray[np.float32]:
        """Return the arguments of the kernels at this step, counted from 1."""
        return np.array([self.lr, 0, 0, 0, 1, 1, 0], np.float32)


@dataclass
class RowAdagrad:
    """Row-wise Adagrad (Mudigere et al., ISCA 2022): `w -= lr g / (sqrt(sum) + eps)`.

    `sum` is one number per row: the sum of the mean squared gradients. The state has 4 bytes per row, while Adam's has
    8 bytes per weight.
    """

    lr: float = 0.02
    """Learning rate."""
    eps: float = 1e-8
    """Term added to the denominator for numerical stability."""
    kind: ClassVar[int] = kernels.ADAGRAD

    def __post_init__(self) -> None:
        check_number(0, LARGEST, lr=self.lr)
        check_number(SMALLEST, LARGEST, eps=self.eps)

    def state(self, rows: int, columns: int) -> RowState:
        """Return a new state for a matrix."""
        return RowState.of((1, columns), (rows, 1))

    def numbers(self, step: int) -> NDArray[np.float32]:
        """Return the arguments of the kernels at this step, counted from 1."""
        return np.array([self.lr, 0, 0, self.eps, 1, 1, 0], np.float32)


@dataclass
class Adam:
    """Adam (Kingma, Ba, ICLR 2015) on the computed rows only, like `torch.optim.SparseAdam`."""

    lr: float = 1e-3
    """Learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the running means of the gradient and its square."""
    eps: float = 1e-8
    """Term added to the denominator for numerical stability."""
    decay: bool = False
    """Whether skipped steps of dense Adam are applied to a row, in closed form, before it is next used. Only for output
    layers. Samplers use the rows without these steps."""
    moments: Moments = "fp32"
    """Format of the moments: `fp32`, or `bf16` with stochastic rounding. `bf16` needs 8 instead of 12 bytes per weight
    and moments."""
    kind: ClassVar[int] = kernels.ADAM

    def __post_init__(self) -> None:
        check_number(0, LARGEST, lr=self.lr)
        check_number(SMALLEST, LARGEST, eps=self.eps)
        betas: Any = self.betas
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise invalid_value("betas", self.betas, "two numbers")
        check_number(0, 1, beta1=self.betas[0], beta2=self.betas[1])
        check_flag(decay=self.decay)
        if self.moments not in get_args(Moments):
            raise invalid_value("moments", self.moments, "'fp32' or 'bf16'")
        if self.decay and self.betas[0] ** 2 >= self.betas[1]:
            message = (
                f"betas = {self.betas}: decay=True needs b1 ** 2 < b2, or skipped steps would not converge"
            )
            raise coded(ValueError(message), "decay_without_end", betas=self.betas)

    def state(self, rows: int, columns: int) -> RowState:
        """Return a new state for a matrix."""
        kind = np.uint16 if self.moments == "bf16" else np.float32
        return RowState.of((rows, columns), (rows, columns), kind)

    def numbers(self, step: int) -> NDArray[np.float32]:
        """Return the arguments of the kernels at this step, counted from 1."""
        b1, b2 = self.betas
        scales = 1 / (1 - b1**step), 1 / (1 - b2**step)
        return np.array([self.lr, b1, b2, self.eps, *scales, step % STEPS_IN_FULL], np.float32)

    def corrections(self) -> NDArray[np.float32]:
        """Return the bias corrections of a step by its number, until they are 1 in float32."""
        b1, b2 = self.betas
        gone = max(log(EPSILON) / log(beta) if beta else 1.0 for beta in self.betas)
        steps = np.maximum(1, np.arange(int(min(gone, MAX_CORRECTED)) + 2))
        return (np.sqrt(1 - b2**steps) / (1 - b1**steps)).astype(np.float32)


Optimizer = SGD | RowAdagrad | Adam


def check_optimizer(optimizer: object) -> None:
    """Raise ValueError unless it is an optimizer of this package or None."""
    if not (optimizer is None or isinstance(optimizer, SGD | RowAdagrad | Adam)):
        must = "an optimizer of oddlot.sparse, such as Adam(lr=1e-3), or None"
        raise invalid_value("optimizer", optimizer, must)


def checked_numbers(optimizer: Optimizer, step: int) -> NDArray[np.float32]:
    """Return the arguments of the kernels. Raise ValueError if the learning rate has been set to an invalid value."""
    check_number(0, LARGEST, lr=optimizer.lr)
    return optimizer.numbers(step)


def alike(one: Optimizer | None, other: Optimizer | None) -> bool:
    """Return whether one optimizer can continue with the state of the other."""
    kinds = ((type(how), getattr(how, "moments", ""), getattr(how, "decay", False)) for how in (one, other))
    return next(kinds) == next(kinds)


def bytes_of_row(optimizer: Optimizer | None, columns: int) -> int:
    """Return the bytes of a row and its optimizer state."""
    narrow, wide = (_kept_of_row(optimizer, some) for some in (1, 2))
    return 4 * columns + narrow + (wide - narrow) * (columns - 1)


def _kept_of_row(optimizer: Optimizer | None, columns: int) -> int:
    kept = () if optimizer is None else vars(optimizer.state(2, columns)).values()
    return sum(int(one[0].nbytes) for one in kept if len(one) == 2)
