"""Python's own exceptions and warnings, with what oddlot's have beside their sentence."""

from typing import Any, TypeVar

AnyError = TypeVar("AnyError", bound=BaseException)


def coded(error: AnyError, code: str, **fields: Any) -> AnyError:
    """The error, with a `code` that stays the same when its sentence changes, and `fields` with the values that it is
    about; `reason` is what another library or the system said."""
    vars(error).update(code=code, fields=fields)
    return error


def invalid_value(name: str, given: Any, must: str) -> ValueError:
    """The setting `name` cannot have the value `given`."""
    sentence = f"{name} = {given!r} must be {must}"
    return coded(ValueError(sentence), "invalid_value", name=name, given=given, must=must)
