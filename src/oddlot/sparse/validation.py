"""Checks of settings and inputs."""

import sys
import warnings
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oddlot.sparse.errors import coded, invalid_value

OURS = {"oddlot", "torch"}
MOST, MAX_SEED = (1 << 31) - 1, (1 << 63) - 1
TOO_LARGE = 1e15
"""Limit of gradients. The sum of a few thousand squares of such numbers overflows float32."""


def check_whole(least: int = 1, most: int = MOST, **settings: Any) -> None:
    """Raise ValueError unless all are integers from `least` to `most`."""
    for name, value in settings.items():
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not least <= value <= most:
            raise invalid_value(name, value, f"a whole number from {least} to {most:,}")


def check_flag(**settings: Any) -> None:
    """Raise ValueError unless all are True or False."""
    for name, value in settings.items():
        if not isinstance(value, bool | np.bool_):
            raise invalid_value(name, value, "True or False")


def check_number(low: float, high: float, **settings: Any) -> None:
    """Raise ValueError unless all are finite numbers of at least `low` and below `high`."""
    for name, value in settings.items():
        if not _is_number(value) or not isfinite(value) or not low <= value < high:
            limit = f" and below {high:g}" if isfinite(high) else ""
            raise invalid_value(name, value, f"a number of at least {low:g}{limit}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)


def check_share(**settings: Any) -> None:
    """Raise ValueError unless all are numbers above 0 and at most 1."""
    for name, value in settings.items():
        if not _is_number(value) or not 0 < value <= 1:
            raise invalid_value(name, value, "a number above 0 and at most 1")


def as_array(given: Any, name: str) -> NDArray[Any]:
    """Return an array.

    Raise ValueError if it cannot be converted, such as a tensor in bfloat16 or with requires_grad.
    """
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"{name} must be an array of numbers: {error}"
        raise coded(ValueError(message), "not_an_array", name=name, reason=str(error)) from None


def checked_starts(starts: Any, values: int, what: str) -> NDArray[np.int64]:
    """Return the row pointers of a CSR matrix. Raise ValueError, with the name `what`, if they are invalid."""
    name = f"the starts of {what}"
    given = as_array(starts, name)
    if given.ndim != 1 or given.dtype.kind not in "iu" or not len(given):
        error = ValueError(f"{name} must be a 1-D array of whole numbers, one more than examples")
        raise coded(error, "not_1d_integers", name=name, dtype=str(given.dtype), shape=given.shape)
    found = given.astype(np.int64)  # differences of unsigned integers are never negative
    if found[0] != 0 or found[-1] != values or (np.diff(found) < 0).any():
        error = ValueError(f"{name} must ascend from 0 to the number of values, {values}")
        raise coded(error, "invalid_row_pointers", name=name, values=values)
    return found


def check_parameters(**parameters: tuple[Tensor, tuple[int, ...]]) -> None:
    """Raise ValueError unless all parameters have these shapes, and are contiguous float32 tensors on the CPU."""
    for name, (tensor, shape) in parameters.items():
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or tensor.shape != shape:
            given = {"shape": tuple(tensor.shape), "dtype": str(tensor.dtype), "device": str(tensor.device)}
            message = "{shape}, {dtype} on {device}".format(**given)
            error = ValueError(f"{name} is {message}, but must be {shape}, torch.float32 on cpu")
            raise coded(error, "wrong_parameter", name=name, **given, expected=shape)
        if not tensor.is_contiguous():
            error = ValueError(f"{name} is not contiguous: use its .contiguous()")
            raise coded(error, "not_contiguous", name=name)


def warn(text: str, code: str, **fields: Any) -> None:
    """Show a UserWarning at the line of the caller outside this package and PyTorch."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(coded(UserWarning(text), code, **fields), stacklevel=level)
