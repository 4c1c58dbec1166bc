"""What settings may be, said in a sentence before anything is computed with them."""

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
"""for a gradient: a few thousand squares of such numbers are more than a float32 can hold"""


def check_whole(least: int = 1, most: int = MOST, **settings: Any) -> None:
    """ValueError: one is no whole number, or not from `least` to `most`."""
    for name, value in settings.items():
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or not least <= value <= most:
            raise invalid_value(name, value, f"a whole number, from {least} to {most:,}")


def check_flag(**settings: Any) -> None:
    """ValueError: one is neither True nor False."""
    for name, value in settings.items():
        if not isinstance(value, bool | np.bool_):
            raise invalid_value(name, value, "True or False")


def check_number(low: float, high: float, **settings: Any) -> None:
    """ValueError: one is no finite number from `low` to below `high`."""
    for name, value in settings.items():
        if not _is_number(value) or not isfinite(value) or not low <= value < high:
            limit = f", below {high:g}" if isfinite(high) else ""
            raise invalid_value(name, value, f"a number, at least {low:g}{limit}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)


def check_share(**settings: Any) -> None:
    """ValueError: one is no number above 0, at most 1."""
    for name, value in settings.items():
        if not _is_number(value) or not 0 < value <= 1:
            raise invalid_value(name, value, "a number above 0, at most 1")


def as_array(given: Any, name: str) -> NDArray[Any]:
    """ValueError: it cannot be one, as a tensor in bfloat16, or one that requires a gradient."""
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        told = f"{name} are no array of numbers: {error}"
        raise coded(ValueError(told), "not_an_array", name=name, reason=str(error)) from None


def checked_starts(starts: Any, values: int, what: str) -> NDArray[np.int64]:
    """The row pointers of a CSR matrix of so many values. ValueError: they are none; `what` they are of."""
    name = f"the starts of {what}"
    given = as_array(starts, name)
    if given.ndim != 1 or given.dtype.kind not in "iu" or not len(given):
        error = ValueError(f"{name} are a 1-D array of whole numbers, one more than examples")
        raise coded(error, "not_1d_integers", name=name, dtype=str(given.dtype), shape=given.shape)
    found = given.astype(np.int64)  # differences of unsigned numbers are never negative
    if found[0] != 0 or found[-1] != values or (np.diff(found) < 0).any():
        error = ValueError(f"{name} rise from 0 to how many there are, {values}")
        raise coded(error, "invalid_row_pointers", name=name, values=values)
    return found


def check_parameters(**parameters: tuple[Tensor, tuple[int, ...]]) -> None:
    """ValueError: a parameter is not of this shape, in float32 on the CPU, one number after the other."""
    for name, (tensor, shape) in parameters.items():
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or tensor.shape != shape:
            given = {"shape": tuple(tensor.shape), "dtype": str(tensor.dtype), "device": str(tensor.device)}
            told = "{shape}, {dtype} on {device}".format(**given)
            error = ValueError(f"{name} is {told}: {shape}, torch.float32 on the CPU is expected")
            raise coded(error, "wrong_parameter", name=name, **given, expected=shape)
        if not tensor.is_contiguous():
            error = ValueError(f"{name} is a view of another tensor: its .contiguous() is expected")
            raise coded(error, "not_contiguous", name=name)


def warn(text: str, code: str, **fields: Any) -> None:
    """A UserWarning at the line, outside this package and PyTorch, that has led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(coded(UserWarning(text), code, **fields), stacklevel=level)
