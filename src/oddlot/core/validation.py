"""What settings may be, said beside their hints: `lr: NotNegative = 0.1`, `steps: AtLeastOne = 8`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from math import inf
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from oddlot.core.errors import InvalidValue

Check = Callable[[Any], str]
"""What a value must be, such as `at least 1`; empty where it is that."""
UNIONS = {Union, UnionType}
_NUMBERS: dict[type, type] = {int: Integral, float: Real}
"""numpy's numbers among them"""
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", NoneType: "None"}


@dataclass(frozen=True)
class Must:
    """A check that can be told in words."""

    words: str
    holds: Callable[[Any], bool]

    def __call__(self, value: Any) -> str:
        return "" if self.holds(value) else self.words

    def __repr__(self) -> str:  # as `help` shows it
        return f"<{self.words}>"


def at_least(least: int) -> Must:
    """A check: not below `least`."""
    return Must(f"at least {least}", lambda value: value >= least)


NOT_NEGATIVE = Must("finite and not negative", lambda value: 0 <= value < inf)
ABOVE_ZERO = Must("finite and above 0", lambda value: 0 < value < inf)
OVER_ZERO = Must("above 0", lambda value: value > 0)
"""infinity too"""
SEED = Must(f"a whole number from 0 to {2**32 - 1}", lambda value: 0 <= value < 2**32)
"""numpy's shared state can be seeded with no other"""

AtLeastOne = Annotated[int, at_least(1)]
NotNegative = Annotated[float, NOT_NEGATIVE]
AboveZero = Annotated[float, ABOVE_ZERO]
OverZero = Annotated[float, OVER_ZERO]
WithinOne = Annotated[float, Must("above -1 and below 1", lambda value: -1 < value < 1)]
FromZeroBelowOne = Annotated[float, Must("at least 0 and below 1", lambda value: 0 <= value < 1)]
Seed = Annotated[int, SEED]


def check_settings(settings: Any) -> None:
    """The fields of a dataclass hold what their hints say: no number in quotes, none out of its range.

    Only classes, choices of some, and the checks of `Annotated` are looked at. UsageError names the field.
    """
    for name, hint in hints_of(settings.__class__).items():
        value = getattr(settings, name)
        must = next(_faults(hint, value), None)
        if must:
            raise InvalidValue(name, value, must)
        if type(value).__module__ == "numpy" and isinstance(value, Real):  # JSON has none of them
            object.__setattr__(settings, name, int(value) if isinstance(value, Integral) else float(value))


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """The hints of a dataclass's fields, with their checks."""
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: hints[one.name] for one in fields(kind)}


def _faults(hint: Any, value: Any) -> Iterator[str]:
    """What the value should be and is not."""
    parts = get_args(hint) if get_origin(hint) in UNIONS else (hint,)
    kinds = [part.__origin__ if get_origin(part) is Annotated else part for part in parts]
    are_classes = all(type(kind) is type for kind in kinds)
    if are_classes and not any(is_a(value, kind) for kind in kinds):
        yield " or ".join(map(_word, kinds))
    for part, kind in zip(parts, kinds, strict=True):
        if part is not kind and (is_a(value, kind) if are_classes else len(parts) == 1):
            yield from (must for check in part.__metadata__ if (must := check(value)))


def _word(kind: type) -> str:
    """What a value of a class is called; of a base class, with one of its subclasses."""
    examples: list[type] = [] if kind in _WORDS or is_dataclass(kind) else kind.__subclasses__()
    if examples:
        return f"of class {kind.__name__}, such as {examples[0].__name__}(...)"
    return _WORDS.get(kind, f"{kind.__name__}(...)")


def is_a(value: Any, kind: type) -> bool:
    """An int is any whole number, a float any number, numpy's among them; True and False are none."""
    return isinstance(value, _NUMBERS.get(kind, kind)) and (kind is bool or not isinstance(value, bool))
