"""Dataclasses to JSON-able data and back, driven by their type hints.

A dataclass becomes a dict with its class name under "is", without what is None as it is unless said; a named tuple
becomes a list. Reading needs the type that was written, and a union of dataclasses is told apart by "is". Of a
dataclass that holds another one of whatever class, the type is `Outer[Inner]`.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

_SCALARS = frozenset({str, int, float, bool, type(None)})


@cache
def _names(kind: type) -> tuple[tuple[str, bool], ...] | None:
    """A dataclass's fields, and whether each is None unless said."""
    return tuple((f.name, f.default is None) for f in fields(kind)) if is_dataclass(kind) else None


def to_plain(value: Any) -> Any:
    """The value as dicts, lists, strings, numbers, booleans and None."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if (names := _names(kind)) is not None:  # type: ignore[arg-type]  # a class is hashable
        plain = {"is": kind.__name__}
        for name, is_optional in names:
            part = getattr(value, name)
            if part is not None or not is_optional:
                plain[name] = part if type(part) in _SCALARS else to_plain(part)
        return plain
    if isinstance(value, Real):  # numpy's
        return int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [part if type(part) in _SCALARS else to_plain(part) for part in value]
    raise TypeError(
        f"{value!r} ({kind.__name__}) cannot be saved: use dataclasses, dicts, lists, text and numbers"
    )


def from_plain(kind: Any, plain: Any) -> Any:
    """The value of type `kind` that `to_plain` turned into `plain`."""
    return _reader(kind)(plain)


_Reader = Callable[[Any], Any]


@cache
def _reader(kind: Any) -> _Reader:
    """How values of a type are read; built once for each type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union_reader(arguments)
    if kind is float:
        return lambda plain: None if plain is None else float(plain)
    if is_dataclass(origin or kind) and isinstance(origin or kind, type):
        return _dataclass_reader(kind)
    if origin is tuple and arguments[-1] is not Ellipsis:
        readers = [_reader(argument) for argument in arguments]
        return lambda plain: tuple(read(part) for read, part in zip(readers, plain, strict=True))
    if origin in (tuple, list):
        read = _reader(arguments[0])
        return lambda plain: origin(map(read, plain))
    if origin in (dict, Mapping):
        read = _reader(arguments[1])
        return lambda plain: {key: read(part) for key, part in plain.items()}
    if hasattr(kind, "_fields"):
        return lambda plain: kind(*plain)
    return lambda plain: plain


def type_of(value: Any) -> Any:
    """The type to read a value back by: its class, with those of what it holds where that may be of any class."""
    kind = type(value)
    if not getattr(kind, "__parameters__", ()):
        return kind
    held = {hint: name for name, hint in get_type_hints(kind).items() if isinstance(hint, TypeVar)}
    return kind[tuple(type_of(getattr(value, name)) for name in held.values())]


def _dataclass_reader(kind: Any) -> _Reader:
    given = get_args(kind)
    kind = get_origin(kind) or kind
    hints = get_type_hints(kind)
    given = given or tuple(each for base in getattr(kind, "__orig_bases__", ()) for each in get_args(base))
    held = dict(zip((hint for hint in hints.values() if isinstance(hint, TypeVar)), given, strict=False))
    parts = [(field.name, held.get(hints[field.name], hints[field.name])) for field in fields(kind)]
    # Built when first used: types may refer to each other.
    readers: dict[str, _Reader] = {}

    def read(plain: dict[str, Any]) -> Any:
        if not readers:
            readers.update({name: _reader(hint) for name, hint in parts})
        return kind(**{name: readers[name](part) for name, part in plain.items() if name != "is"})

    return read


def _union_reader(kinds: tuple[Any, ...]) -> _Reader:
    words = {kind.__name__: _reader(kind) for kind in kinds if isinstance(kind, type) and is_dataclass(kind)}
    others = [_reader(kind) for kind in kinds if not is_dataclass(kind) and kind is not type(None)]

    def read(plain: Any) -> Any:
        if isinstance(plain, dict) and "is" in plain:
            if plain["is"] not in words:
                raise ValueError(f"unknown word {plain['is']!r}")
            return words[plain["is"]](plain)
        return others[0](plain) if len(others) == 1 else plain

    return read
