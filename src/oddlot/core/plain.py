"""Dataclasses to JSON-able data and back, driven by their type hints.

A dataclass becomes a dict with its class name under "is"; a named tuple becomes a list. Reading needs the type
that was written, and a union of dataclasses is told apart by "is".
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_SCALARS = frozenset({str, int, float, bool, type(None)})


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else None


def to_plain(value: Any) -> Any:
    """The value as dicts, lists, strings, numbers, booleans and None."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if (names := _names(kind)) is not None:  # type: ignore[arg-type]  # a class is hashable
        plain = {"is": kind.__name__}
        for name in names:
            part = getattr(value, name)
            plain[name] = part if type(part) in _SCALARS else to_plain(part)
        return plain
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(part) for part in value]
    raise TypeError(
        f"{value!r} ({kind.__name__}) cannot be saved: use dataclasses, dicts, lists, text and numbers"
    )


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def from_plain(kind: Any, plain: Any) -> Any:
    """The value of type `kind` that `to_plain` turned into `plain`."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _from_union(get_args(kind), plain)
    if origin is Literal or kind is Any or plain is None:
        return plain
    if origin is not None:
        return _from_container(origin, get_args(kind), plain)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{name: from_plain(hints[name], part) for name, part in plain.items() if name != "is"})
    if hasattr(kind, "_fields"):
        return kind(*plain)
    return float(plain) if kind is float else plain


def _from_container(origin: Any, arguments: tuple[Any, ...], plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: from_plain(arguments[1], part) for key, part in plain.items()}
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(from_plain(kind, part) for kind, part in zip(arguments, plain, strict=True))
    return (tuple if origin is tuple else list)(from_plain(arguments[0], part) for part in plain)


def _from_union(kinds: tuple[Any, ...], plain: Any) -> Any:
    if isinstance(plain, dict) and "is" in plain:
        for kind in kinds:
            if getattr(kind, "__name__", None) == plain["is"]:
                return from_plain(kind, plain)
        raise ValueError(f"unknown word {plain['is']!r}")
    plain_kinds = [kind for kind in kinds if not is_dataclass(kind) and kind is not type(None)]
    return from_plain(plain_kinds[0], plain) if len(plain_kinds) == 1 else plain
