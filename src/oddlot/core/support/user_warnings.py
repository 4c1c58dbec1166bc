"""Warnings that point at the line in the user's code."""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from oddlot.core.support.errors import OddlotWarning

OURS = {"oddlot", "contextlib"}
_text: ContextVar[set[str] | None] = ContextVar("message", default=None)
"""Texts of shown warnings, with masked numbers, while `once` is active."""
NUMBER = re.compile(r"(?<!\w)\d[\d.,]*")


def warn(text: str, code: str, **fields: Any) -> None:
    """Show an OddlotWarning at the innermost line outside this package."""
    message, masked = _text.get(), NUMBER.sub("#", text)
    if message is not None and masked in message:
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(OddlotWarning(text, code, **fields), stacklevel=level)
    if message is not None:
        message.add(masked)


@contextmanager
def once() -> Iterator[None]:
    """Show each warning only once inside this context, for example for several runs."""
    before = _text.set(set())
    try:
        yield
    finally:
        _text.reset(before)
