"""Warnings that point at the user's line, and are told once."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OURS = {"oddlot", "contextlib"}


def warn(text: str) -> None:
    """A UserWarning at the line, outside this package, that has led here."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in OURS:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


@contextmanager
def once() -> Iterator[None]:
    """What has been told inside is not told again inside: several runs have cause for the same."""
    show, told = warnings.showwarning, set[str]()

    def show_new(message: Warning | str, *rest: Any, **named: Any) -> None:
        if (text := str(message)) not in told:
            told.add(text)
            show(message, *rest, **named)

    warnings.showwarning = show_new
    try:
        yield
    finally:
        warnings.showwarning = show
