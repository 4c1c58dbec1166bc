"""Conversion of dataclasses to JSON-serializable data and back, by their type hints.

A dataclass becomes a dict with its class name under "is", without fields that are None by default. A named tuple
becomes a list. Reading requires the expected type. "is" distinguishes the members of a union of dataclasses, and the
subclasses of a base class that is not a dataclass (`Optimizer`), including subclasses of users. Subclasses of a base
class with `@saved_by_place` have the unique `package.module:Class` under "is".

Reading checks every value against its type hint. `Misfit` names the value and its location.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from oddlot.core.support.errors import short
from oddlot.core.support.user_code import place_of

DAMAGED = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError
)  # fmt: skip
"""Exceptions raised while reading data that are damaged or not from `to_plain`."""
MOST = 2**63
"""Limit (exclusive) for the magnitude of integers."""
_LISTS = frozenset({list, tuple})
_SCALARS = frozenset({str, int, float, bool, type(None)})


_BY_PLACE: set[type] = set()
_Base = TypeVar("_Base", bound=type)


def saved_by_place(base: _Base) -> _Base:
    """Decorate a base class, so its subclasses are saved with their import path, `package.module:Class`."""
    _BY_PLACE.add(base)
    return base


@cache
def _word(kind: type) -> str:
    """Return the identifier of a class in saved data."""
    return kind.__name__ if _BY_PLACE.isdisjoint(kind.__mro__) else place_of(kind)


@cache
def _shape(kind: type) -> tuple[str, tuple[tuple[str, bool], ...]] | None:
    """Return the identifier of a dataclass, and its field names, each with whether its default is None."""
    if not is_dataclass(kind):
        return None
    return _word(kind), tuple((each.name, each.default is None) for each in fields(kind))


def to_plain(value: Any) -> Any:
    """Return a value as dicts, lists, strings, numbers, booleans and None."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if (shape := _shape(kind)) is not None:  # type: ignore[arg-type]  # a class is hashable
        word, names = shape
        plain = {"is": word}
        for name, is_optional in names:
            part = getattr(value, name)
            if part is not None or not is_optional:
                plain[name] = part if type(part) in _SCALARS else to_plain(part)
        return plain
    if isinstance(value, Real):  # NumPy numbers
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [part if type(part) in _SCALARS else to_plain(part) for part in value]
    raise TypeError(
        f"{value!r} ({kind.__name__}) cannot be saved: use dataclasses, dicts, lists, strings and numbers"
    )


class Misfit(ValueError):
    """A value does not have its declared type."""


def from_plain(kind: Any, plain: Any) -> Any:
    """Return a value of type `kind` from data of `to_plain`. Raise one of `DAMAGED` if the data are invalid."""
    return _reader(kind)(plain)


_Reader = Callable[[Any], Any]


@cache
def _reader(kind: Any) -> _Reader:
    """Return a function that reads values of a type. Cached per type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union_reader(arguments)
    if kind in _CHECKED:
        return _CHECKED[kind]
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass_reader(kind)
    if origin is Literal:
        return lambda plain: plain if plain in arguments else _misfit(plain, "one of the words")
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _row_reader(arguments, tuple)
    if origin in (tuple, list):
        read = _reader(arguments[0])
        return lambda plain: origin(map(read, _listed(plain)))
    if origin in (dict, Mapping):
        return _dict_reader(_reader(arguments[1]))
    if isinstance(kind, type) and kind not in (Any, object) and any(map(is_dataclass, _subclasses(kind))):
        return _base_reader(kind)
    if hasattr(kind, "_fields"):
        return _row_reader(tuple(get_type_hints(kind).values()), lambda parts: kind(*parts))
    return lambda plain: plain


def _misfit(plain: Any, what: str) -> NoReturn:
    raise Misfit(f"{short(plain)} is not {what}")


def _whole(plain: Any) -> Any:
    if isinstance(plain, int) and -MOST < plain < MOST:
        return plain
    return _misfit(plain, "a whole number below 2**63")


def _number(plain: Any) -> Any:
    if type(plain) is float:
        return plain
    return float(plain) if isinstance(plain, int) else _misfit(plain, "a number")


def _text(plain: Any) -> Any:
    return plain if type(plain) is str else _misfit(plain, "a string")


def _flag(plain: Any) -> Any:
    return plain if type(plain) is bool else _misfit(plain, "true or false")


def _nothing(plain: Any) -> Any:
    return None if plain is None else _misfit(plain, "null")


_CHECKED: dict[Any, _Reader] = {int: _whole, float: _number, str: _text, bool: _flag, NoneType: _nothing}


def _listed(plain: Any) -> Any:
    return plain if type(plain) in _LISTS else _misfit(plain, "a list")


def _table(plain: Any, what: str = "table") -> Any:
    return plain if type(plain) is dict or isinstance(plain, Mapping) else _misfit(plain, f"a {what}")


def _row_reader(kinds: tuple[Any, ...], make: Callable[[Any], Any]) -> _Reader:
    """Return a reader of tuples with one type per position."""
    if set(kinds) == {int}:  # fast path for spans, the most frequent tuples

        def read_whole(plain: Any) -> Any:
            if len(_listed(plain)) != len(kinds):
                _misfit(plain, f"a list of {len(kinds)}")
            return make(map(_whole, plain))

        return read_whole
    readers = [_reader(kind) for kind in kinds]
    return lambda plain: make(read(part) for read, part in zip(readers, _listed(plain), strict=True))


def _dict_reader(read: _Reader) -> _Reader:
    def read_dict(plain: Any) -> Any:
        return {key: read(part) for key, part in _table(plain).items()}

    return read_dict


def _dataclass_reader(kind: type) -> _Reader:
    hints = get_type_hints(kind)
    parts = [(field.name, hints[field.name]) for field in fields(kind)]
    unless_said = {field.name for field in fields(kind) if field.default is None}
    # Built on first use, because types may refer to each other.
    readers: dict[str, _Reader] = {}

    def read(plain: Any) -> Any:
        if not readers:
            readers.update(
                {name: _reader(hint | None if name in unless_said else hint) for name, hint in parts}
            )
        values, name = {}, ""
        try:
            for name, part in _table(plain, kind.__name__).items():
                if name != "is":
                    values[name] = readers[name](part)
        except Misfit as error:
            raise Misfit(f"{name}: {error}") from None
        return kind(**values)

    return read


def _base_reader(base: type) -> _Reader:
    """Return a reader of any dataclass that is a subclass of `base` at the time of reading."""

    def read(plain: Any) -> Any:
        word = _table(plain, base.__name__).get("is")
        kind = known_subclass(base, word)
        return _reader(kind)(plain) if kind else _misfit(word, f"a known {base.__name__}")

    return read


def known_subclass(base: type, word: object) -> type | None:
    """Return the newest dataclass with this identifier that is a subclass of `base`, or None."""
    kinds = [kind for kind in _subclasses(base) if is_dataclass(kind) and _word(kind) == word]
    return kinds[-1] if kinds else None


def _subclasses(base: type) -> Iterator[type]:
    kinds: list[type] = base.__subclasses__()
    for kind in kinds:
        yield kind
        yield from _subclasses(kind)


def _union_reader(kinds: tuple[Any, ...]) -> _Reader:
    words = {_word(kind): _reader(kind) for kind in kinds if isinstance(kind, type) and is_dataclass(kind)}
    others = [_reader(kind) for kind in kinds if not is_dataclass(kind) and kind is not type(None)]
    optional = type(None) in kinds

    def read(plain: Any) -> Any:
        if plain is None and optional:
            return None
        if words and isinstance(plain, dict) and "is" in plain:
            if plain["is"] not in words:
                raise Misfit(f"unknown word {plain['is']!r}")
            return words[plain["is"]](plain)
        if len(others) == 1:
            return others[0](plain)
        return plain if others else _misfit(plain, f"one of {', '.join(words)}")

    return read
