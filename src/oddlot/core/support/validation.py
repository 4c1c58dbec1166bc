"""Validation of settings by their type hints, such as `lr: NotNegative = 0.1`, and limits that are shared.

The shared limits are the decompressed size of files, `MAX_UPDATE_RATIO` and `KEEP_CHECKPOINTS`.
"""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from math import inf
from numbers import Integral, Real
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from oddlot.core.support.errors import InvalidValue

MIN_BYTES = 1 << 26
"""Decompressed bytes that are allowed for any file."""
MAX_RATIO = 200
"""Largest allowed compression ratio. Real data have 2-20. With zeros, gzip reaches 1,032."""


def most_unpacked(packed: int) -> int:
    """Return the limit of decompressed bytes for a compressed file with `packed` bytes."""
    return max(MIN_BYTES, MAX_RATIO * packed)


MAX_UPDATE_RATIO = 1000.0
"""Largest accepted norm of an update, relative to the running median."""
KEEP_CHECKPOINTS = 3
"""Number of newest checkpoints to keep."""


Check = Callable[[Any], str]
"""Function that returns the requirement, such as `at least 1`, or an empty string if the value is valid."""
UNIONS = {Union, UnionType}
NOT_IN_FILES = MappingProxyType({"in_files": False})
"""Metadata of a setting without a key in files and without a flag."""
_NUMBERS: dict[type, type] = {int: Integral, float: Real}
"""Abstract types that include NumPy numbers."""
_WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "True or False", NoneType: "None"}


@dataclass(frozen=True)
class Must:
    """A check with a description."""

    words: str
    holds: Callable[[Any], bool]

    def __call__(self, value: Any) -> str:
        return "" if self.holds(value) else self.words

    def __repr__(self) -> str:  # shown by `help`
        return f"<{self.words}>"


def at_least(least: int) -> Must:
    """Return a check that a value is at least `least`."""
    return Must(f"at least {least}", lambda value: value >= least)


NOT_NEGATIVE = Must("finite and not negative", lambda value: 0 <= value < inf)
ABOVE_ZERO = Must("finite and above 0", lambda value: 0 < value < inf)
OVER_ZERO = Must("above 0", lambda value: value > 0)
"""A check that a value is above 0. Infinity is valid."""
SEED = Must(f"a whole number from 0 to {2**32 - 1}", lambda value: 0 <= value < 2**32)
"""A check for the seeds that NumPy's global generator accepts."""

AtLeastZero = Annotated[int, at_least(0)]
AtLeastOne = Annotated[int, at_least(1)]
NotNegative = Annotated[float, NOT_NEGATIVE]
AboveZero = Annotated[float, ABOVE_ZERO]
OverZero = Annotated[float, OVER_ZERO]
BelowOne = Annotated[float, Must("at least 0 and below 1", lambda value: 0 <= value < 1)]
WithinOne = Annotated[float, Must("above -1 and below 1", lambda value: -1 < value < 1)]
FromZeroBelowOne = Annotated[float, Must("at least 0 and below 1", lambda value: 0 <= value < 1)]
Seed = Annotated[int, SEED]


def check_settings(settings: Any, of: str | None = None) -> None:
    """Raise InvalidValue if a field of a dataclass does not match its type hint.

    Classes, unions of classes, `Literal` and the checks in `Annotated` are validated. `of` is the name of the class
    in the message. If None, it is the name of the dataclass.
    """
    of = settings.__class__.__name__ if of is None else of
    for name, hint in hints_of(settings.__class__).items():
        value = getattr(settings, name)
        must = next(_faults(hint, value), None)
        if must:
            raise InvalidValue(name, value, must, of)
        if type(value).__module__ == "numpy" and isinstance(value, Real):  # JSON cannot encode it
            object.__setattr__(settings, name, int(value) if isinstance(value, Integral) else float(value))


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return the type hints of a dataclass's fields, with their checks."""
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: hints[one.name] for one in fields(kind)}


def settings_of(kind: type) -> dict[str, "Field[Any]"]:
    """Return the fields that files and flags can set. Dicts, lists and fields with `STATE` are state."""
    hints = get_type_hints(kind)
    kept = [
        one for one in fields(kind) if not one.metadata.get("state") and one.metadata.get("in_files", True)
    ]
    return {
        one.name: one for one in kept if (get_origin(hints[one.name]) or hints[one.name]) not in {dict, list}
    }


def default_of(one: "Field[Any]") -> Any:
    """Return the default of a setting."""
    return one.default if one.default_factory is MISSING else one.default_factory()


def _faults(hint: Any, value: Any) -> Iterator[str]:
    """Yield a description of each requirement that a value does not meet."""
    if get_origin(hint) is Literal and value not in get_args(hint):
        yield f"one of {', '.join(map(str, get_args(hint)))}"
    parts = get_args(hint) if get_origin(hint) in UNIONS else (hint,)
    kinds = [part.__origin__ if get_origin(part) is Annotated else part for part in parts]
    are_classes = all(type(kind) is type for kind in kinds)
    if isinstance(value, type) and any(isinstance(kind, type) and issubclass(value, kind) for kind in kinds):
        yield f"an instance, {value.__name__}(...), and not the class"
    if are_classes and not any(is_a(value, kind) for kind in kinds):
        yield " or ".join(map(_word, kinds))
    for part, kind in zip(parts, kinds, strict=True):
        if part is not kind and (is_a(value, kind) if are_classes else len(parts) == 1):
            yield from (must for check in part.__metadata__ if (must := check(value)))


def _word(kind: type) -> str:
    """Return the name of a type for messages. For a base class, add a subclass as an example."""
    examples: list[type] = [] if kind in _WORDS or is_dataclass(kind) else kind.__subclasses__()
    if examples:
        return f"of class {kind.__name__}, such as {examples[0].__name__}(...)"
    return _WORDS.get(kind, f"{kind.__name__}(...)")


def is_a(value: Any, kind: type) -> bool:
    """Return whether a value has a type. Integers are valid floats, NumPy numbers are valid, and bools are not."""
    return isinstance(value, _NUMBERS.get(kind, kind)) and (kind is bool or not isinstance(value, bool))
