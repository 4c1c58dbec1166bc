"""What settings may be. Each check raises a UsageError that begins with the setting's name."""

from dataclasses import fields
from functools import cache
from math import inf
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from oddlot.core.errors import UsageError

MOST_CHARACTERS = 60
_NUMBERS: dict[type, type] = {int: Integral, float: Real}
"""numpy's numbers among them"""
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", NoneType: "None"}


def check_hints(settings: Any) -> None:
    """The fields of a dataclass hold what their hints say: no number in quotes.

    Only fields whose hints are classes, or a choice of some, are looked at.
    """
    for name, kinds in _fields_of_classes(settings.__class__):
        value = getattr(settings, name)
        fits = any(isinstance(value, _NUMBERS.get(kind, kind)) for kind in kinds)
        if not fits or (isinstance(value, bool) and bool not in kinds):
            words = " or ".join(_WORDS.get(kind, f"{kind.__name__}(...)") for kind in kinds)
            raise UsageError(f"{name} = {_short(value)} must be {words}")


def at_least(least: int, **settings: int | None) -> None:
    """Nothing is below `least`; None is a setting that was left open."""
    for name, value in settings.items():
        if value is not None and value < least:
            raise UsageError(f"{name} = {value} must be at least {least}")


def not_negative(**settings: float) -> None:
    """All are finite, and 0 or more."""
    for name, value in settings.items():
        if not 0 <= value < inf:
            raise UsageError(f"{name} = {value} must be finite and not negative")


def above_zero(**settings: float) -> None:
    """All are finite and more than 0."""
    for name, value in settings.items():
        if not 0 < value < inf:
            raise UsageError(f"{name} = {value} must be finite and above 0")


@cache
def _fields_of_classes(kind: type) -> list[tuple[str, tuple[type, ...]]]:
    hints = get_type_hints(kind)
    choices = {
        f.name: get_args(hints[f.name]) if get_origin(hints[f.name]) is UnionType else (hints[f.name],)
        for f in fields(kind)
    }
    return [(name, kinds) for name, kinds in choices.items() if all(type(kind) is type for kind in kinds)]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "..."
