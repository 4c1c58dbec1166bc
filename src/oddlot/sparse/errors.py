"""Python's own exceptions and warnings with a code and fields, like oddlot's."""

from typing import Any, TypeVar

AnyError = TypeVar("AnyError", bound=BaseException)


def coded(error: AnyError, code: str, **fields: Any) -> AnyError:
    """Return the error with a stable `code`, and `fields` with its values.

    The field `reason` is the message of another library or of the system.
    """
    vars(error).update(code=code, fields=fields)
    return error


def invalid_value(name: str, given: Any, must: str) -> ValueError:
    """Return the error for an invalid value of the setting `name`."""
    sentence = f"{name} = {given!r} must be {must}"
    return coded(ValueError(sentence), "invalid_value", name=name, given=given, must=must)
