"""Settings of a wrong kind, such as a number in quotes, told where they are given."""

from dataclasses import fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from oddlot.core.errors import UsageError

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", NoneType: "None"}


def check_kinds(settings: Any) -> None:
    """UsageError, beginning with the field's name, unless the fields of a dataclass hold what their hints say.

    Only fields that are hinted as whole numbers, numbers, texts and truths are looked at.
    """
    for name, kinds in _plain_fields(settings.__class__):
        value = getattr(settings, name)
        if not isinstance(value, (*kinds, int) if float in kinds else kinds):
            words = " or ".join(_WORDS[kind] for kind in kinds)
            raise UsageError(f"{name} = {value!r} must be {words}")


@cache
def _plain_fields(kind: type) -> list[tuple[str, tuple[type, ...]]]:
    hints = get_type_hints(kind)
    choices = {
        f.name: get_args(hints[f.name]) if get_origin(hints[f.name]) is UnionType else (hints[f.name],)
        for f in fields(kind)
    }
    return [(name, kinds) for name, kinds in choices.items() if _WORDS.keys() >= set(kinds)]
