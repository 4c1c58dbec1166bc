"""Optimizers that step on a row as soon as its gradient is known, and leave alone what was not touched."""

from dataclasses import dataclass
from math import log
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from oddlot.sparse.errors import coded, invalid_value
from oddlot.sparse.kernels import rows as kernels
from oddlot.sparse.validation import check_flag, check_number

MAX_CORRECTED = 1 << 22
"""steps of which the correction of Adam's moments' beginning is kept, at most"""
EPSILON = 2.0**-24
"""half of what a float32 near 1 can tell apart"""
SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
STEPS_TOLD = 1 << 24
"""steps that a float32 tells apart"""
Moments = Literal["fp32", "bf16"]


@dataclass
class RowState:
    """What an optimizer keeps of a matrix: `first` and `second` have a row for each of it, or a single one."""

    first: NDArray[Any]
    second: NDArray[Any]

    @classmethod
    def of(cls, first: tuple[int, int], second: tuple[int, int], kind: Any = np.float32) -> "RowState":
        """Zeros of these shapes; bfloat16 are uint16, of the same bits."""
        return cls(np.zeros(first, kind), np.zeros(second, kind))


@dataclass
class SGD:
    """`w -= lr g`. Keeps nothing."""

    lr: float = 0.1
    kind: ClassVar[int] = kernels.SGD

    def __post_init__(self) -> None:
        check_number(0, LARGEST, lr=self.lr)

    def state(self, rows: int, columns: int) -> RowState:
        """What it keeps of a matrix."""
        return RowState.of((1, columns), (1, 1))

    def numbers(self, step: int) -> NDArray[np.float32]:
        """What the kernels are told at this step, counted from 1."""
        return np.array([self.lr, 0, 0, 0, 1, 1, 0], np.float32)


@dataclass
class RowAdagrad:
    """Adagrad with one number a row, the mean squares of its gradients, summed up: `w -= lr g / (sqrt(sum) + eps)`.

    It keeps 4 bytes a row, where Adam keeps 8 a weight ("row-wise Adagrad" of Mudigere et al., ISCA 2022).
    """

    lr: float = 0.02
    eps: float = 1e-8
    kind: ClassVar[int] = kernels.ADAGRAD

    def __post_init__(self) -> None:
        check_number(0, LARGEST, lr=self.lr)
        check_number(SMALLEST, LARGEST, eps=self.eps)

    def state(self, rows: int, columns: int) -> RowState:
        """What it keeps of a matrix."""
        return RowState.of((1, columns), (rows, 1))

    def numbers(self, step: int) -> NDArray[np.float32]:
        """What the kernels are told at this step, counted from 1."""
        return np.array([self.lr, 0, 0, self.eps, 1, 1, 0], np.float32)


@dataclass
class Adam:
    """Adam (Kingma, Ba, ICLR 2015) on the rows that are touched; the others wait, as with `torch.optim.SparseAdam`.

    With `decay`, for output layers, a row that is touched again, or asked for as a logit or in `state_dict()`, is first
    brought to where dense Adam, at the present learning rate, would have moved it meanwhile, in closed form; samplers
    look for rows where they last were.
    `moments = "bf16"` keeps both in 16 bits, rounded up or down by chance so that they are right in the mean: 8 bytes
    for a weight and its moments, not 12.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: bool = False
    moments: Moments = "fp32"
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
            raise invalid_value("moments", self.moments, "fp32 or bf16")
        if self.decay and self.betas[0] ** 2 >= self.betas[1]:
            told = f"betas = {self.betas}: with decay a row that waits needs b1 ** 2 < b2, or moves for ever"
            raise coded(ValueError(told), "decay_without_end", betas=self.betas)

    def state(self, rows: int, columns: int) -> RowState:
        """What it keeps of a matrix."""
        kind = np.uint16 if self.moments == "bf16" else np.float32
        return RowState.of((rows, columns), (rows, columns), kind)

    def numbers(self, step: int) -> NDArray[np.float32]:
        """What the kernels are told at this step, counted from 1."""
        b1, b2 = self.betas
        scales = 1 / (1 - b1**step), 1 / (1 - b2**step)
        return np.array([self.lr, b1, b2, self.eps, *scales, step % STEPS_TOLD], np.float32)

    def corrections(self) -> NDArray[np.float32]:
        """What the moments' beginning at 0 does to a step, by its number, until a float32 no longer tells."""
        b1, b2 = self.betas
        gone = max(log(EPSILON) / log(beta) if beta else 1.0 for beta in self.betas)
        steps = np.maximum(1, np.arange(int(min(gone, MAX_CORRECTED)) + 2))
        return (np.sqrt(1 - b2**steps) / (1 - b1**steps)).astype(np.float32)


Optimizer = SGD | RowAdagrad | Adam


def check_optimizer(optimizer: object) -> None:
    """ValueError: it is neither an optimizer of this package nor None."""
    if not (optimizer is None or isinstance(optimizer, SGD | RowAdagrad | Adam)):
        must = "an optimizer of oddlot.sparse, such as Adam(lr=1e-3), or None"
        raise invalid_value("optimizer", optimizer, must)


def checked_numbers(optimizer: Optimizer, step: int) -> NDArray[np.float32]:
    """What the kernels are told. ValueError: the learning rate, which may be changed, makes no sense."""
    check_number(0, LARGEST, lr=optimizer.lr)
    return optimizer.numbers(step)


def alike(one: Optimizer | None, other: Optimizer | None) -> bool:
    """Whether they keep the same, so that one may go on for the other."""
    kinds = ((type(how), getattr(how, "moments", ""), getattr(how, "decay", False)) for how in (one, other))
    return next(kinds) == next(kinds)


def bytes_of_row(optimizer: Optimizer | None, columns: int) -> int:
    """What a row and what is kept of it take."""
    narrow, wide = (_kept_of_row(optimizer, some) for some in (1, 2))
    return 4 * columns + narrow + (wide - narrow) * (columns - 1)


def _kept_of_row(optimizer: Optimizer | None, columns: int) -> int:
    kept = () if optimizer is None else vars(optimizer.state(2, columns)).values()
    return sum(int(one[0].nbytes) for one in kept if len(one) == 2)
