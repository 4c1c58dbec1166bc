"""Reading of TOML files, with errors that name the file, the line and a suggestion.

A file's tables are pydantic models derived from `Table`. The parser does not keep line numbers; `locate` finds them.
"""

import re
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from oddlot.config.toml_text import check_text, parsed, text_without_quotes
from oddlot.core.support.errors import UnknownName, UsageError, joined
from oddlot.core.support.text import nearest, or_nearest
from oddlot.machines.text_files import check_regular, not_utf8, unreadable

KeyPath = Sequence[str | int]
AnyTable = TypeVar("AnyTable", bound="Table")
MAX_LETTERS = 1_000_000
"""Largest length of a file, in characters."""
PLAIN_TYPES = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "text in quotes",
    "a valid dictionary": "a table",
}
"""pydantic's names of types, in plain words."""
MAX_FAULTS = 20
"""Largest number of errors of a file that are listed."""


class Table(BaseModel):
    """Base class of TOML tables. Unknown keys and values of other types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    whose: ClassVar[str] = ""
    """Owner of the settings, for messages, such as ` of FastestK`."""

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_nearest(cls, table: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Add suggestions to errors about unknown keys of this table."""
        try:
            return handler(table)
        except ValidationError as error:
            raise with_message(error, cls._remedy) from None

    @classmethod
    def _remedy(cls, fault: ErrorDetails) -> UsageError | None:
        if fault["type"] != "extra_forbidden" or len(fault["loc"]) > 1:
            return None
        key = str(fault["loc"][0])
        return unknown_key(key, cls.whose, or_nearest(key, cls.model_fields), nearest(key, cls.model_fields))


def unknown_key(key: str, whose: str, remedy: str, nearest: str | None = None) -> UsageError:
    """Return the error for an unknown key."""
    return UsageError(f"unknown key `{key}`{whose}. {remedy}", "unknown_key", given=key, nearest=nearest)


def with_message(
    error: ValidationError, better: Callable[[ErrorDetails], UsageError | None]
) -> ValidationError:
    """Replace each error with the result of `better`, if it returns an error. Errors beyond `MAX_FAULTS` are
    unchanged."""
    found = enumerate(error.errors(include_url=False))
    faults = [_with_message(fault, better(fault) if at < MAX_FAULTS else None) for at, fault in found]
    return ValidationError.from_exception_data(error.title, faults)


def _with_message(fault: ErrorDetails, better: UsageError | None) -> InitErrorDetails:
    message = PydanticCustomError(
        fault["type"], "{message}", {**fault.get("ctx", {}), "message": fault["msg"]}
    )
    if better:
        message = about(better)
    return InitErrorDetails(type=message, loc=fault["loc"], input=fault["input"])


def about(error: UsageError) -> PydanticCustomError:
    """Wrap an error about a key or a table in the exception that validators of a `Table` raise."""
    return PydanticCustomError("about", "{sentence}", {"sentence": str(error), "error": error})


def read_text(path: Path) -> str:
    """Return the text of a TOML file. Raise UsageError if it cannot be read or is too large."""
    check_regular(path)
    try:
        with path.open(encoding="utf-8-sig") as file:  # some editors write a byte order mark
            text = file.read(MAX_LETTERS + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from None
    if len(text) > MAX_LETTERS:
        message = f"{path} has more than {MAX_LETTERS:,} characters: too large for such a file"
        raise UsageError(message, "file_too_large", path=str(path))
    return text


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text and the contents of a file. Raise UsageError if it is unreadable or not valid TOML."""
    text = read_text(path)
    try:
        check_text(text)
        return text, tomllib.loads(text)
    except UsageError as error:
        raise error.with_message(f"{path}: {error}", path=str(path)) from None
    except RecursionError:
        message = f"{path} is not valid TOML: it is nested too deeply"
        raise UsageError(message, "nested_too_deeply", path=str(path)) from None
    except ValueError as error:  # not TOML, or an integer with too many digits for Python
        line = re.search(r"at line (\d+)", str(error))
        number = line[1] if line else text.rstrip().count("\n") + 1
        unquoted = text_without_quotes(text, str(error))
        message = f"not valid TOML: {error}" + (f'. Write text in quotes: "{unquoted}"' if unquoted else "")
        bad = UsageError(message, "invalid_toml", reason=str(error), unquoted=unquoted)
        raise at_line(path, int(number), bad) from None


def read_table(path: Path, kind: type[AnyTable]) -> tuple[str, AnyTable]:
    """Return the text and the table of a file. Raise UsageError if it is unreadable or invalid."""
    text, plain = read_toml(path)
    try:
        return text, kind.model_validate(plain, context={"folder": path.parent})
    except ValidationError as error:
        raise explain(error, lambda keys, fault: at_line(path, locate(text, keys), fault), path) from None


def explain(
    error: ValidationError, placed: Callable[[KeyPath, UsageError], UsageError], path: Path | None
) -> UsageError:
    """Return the first `MAX_FAULTS` errors as one, in the order of their lines. `placed` adds the location of each."""
    message = [placed(keys, fault) for keys, fault in faults(error, MAX_FAULTS)]
    message.sort(key=lambda fault: (fault.fields.get("line", 0), str(fault)))
    if (more := error.error_count() - MAX_FAULTS) > 0:
        sentence = f"{path}: {more:,} more errors" if path else f"{more:,} more errors"
        message.append(UsageError(sentence, "more_errors", path=str(path or ""), more=more))
    return joined(message)


def at_line(path: Path, line: int, error: UsageError) -> UsageError:
    """Add a file and a line to an error. An earlier location is kept in the fields `file` and `file_line`."""
    places = {"path": "file", "line": "file_line"}
    inside = {new: error.fields[old] for old, new in places.items() if old in error.fields}
    return error.with_message(f"{path}:{line}: {error}", **inside, path=str(path), line=line)


def faults(error: ValidationError, most: int | None = None) -> list[tuple[KeyPath, UsageError]]:
    """Return the keys and a UsageError for each error of a ValidationError, or for the first `most` of them."""
    found = [(detail["loc"], _fault(detail)) for detail in error.errors(include_url=False)[:most]]
    return [((*loc, *filter(None, fault.key.split("."))), fault) for loc, fault in found]


def locate(text: str, keys: KeyPath) -> int:
    """Return the number (from 1) of the first line of valid TOML with `keys`, or with their longest existing prefix."""
    whole, statements = parsed(text)
    wanted = said(whole, keys)
    for each in statements if wanted else ():
        depth = min(len(each.path), len(wanted))
        if [*each.path[:depth]] == wanted[:depth]:
            rest = wanted[depth:]
            if not rest or (each.says(rest[0]) and said(tomllib.loads(each.text), rest) == rest):
                return each.line
    return 1


def said(value: Any, keys: KeyPath) -> list[str | int]:
    """Return the keys that exist in `value`. pydantic adds names of union members that are not in the file."""
    found: list[str | int] = []
    for key in keys:
        with suppress(LookupError, TypeError):
            value = value[key]
            found.append(key)
    return found


def _plain(message: str) -> str:
    for words, plain in PLAIN_TYPES.items():
        message = message.replace(words, plain)
    return message


def _fault(detail: ErrorDetails) -> UsageError:
    *parents, key = detail["loc"] or ("the file",)
    given, where = detail["input"], _dotted(detail["loc"])
    must = _plain(detail["msg"]).replace("Input should", "it must")
    match detail["type"]:
        case "about":
            error: UsageError = detail["ctx"]["error"]
            return error
        case "missing" if isinstance(key, int):
            return _invalid(_dotted(parents), given, "it has too few values", "too_few_values")
        case "too_long":
            return _invalid(where, given, "it has too many values", "too_many_values")
        case "missing":
            place = f" in `{_dotted(parents)}`" if parents else ""
            return UsageError(f"`{key}` is missing{place}", "missing_key", name=where)
        case "literal_error":
            return UnknownName(str(key), str(given), re.findall(r"'([^']*)'", detail["ctx"]["expected"]))
        case "string_too_short":
            return UsageError(f"`{where}` is empty", "empty_value", name=where)
        case "invalid-json-value":
            message = f"`{where}` is {given}: write dates and times as strings, in quotes"
            return UsageError(message, "date_without_quotes", name=where)
        case "tuple_type":
            must = "it must be a list, in brackets"
        case "model_type":
            must = "it must be a table"
    return _invalid(where, given, must)


def _invalid(where: str, given: Any, message: str, code: str = "invalid_value") -> UsageError:
    fields = {"must": message.removeprefix("it must be ")} if code == "invalid_value" else {}
    return UsageError(f"`{where}` is {given!r}: {message}", code, name=where, given=given, **fields)


def _dotted(keys: KeyPath) -> str:
    return (
        "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".") or "the file"
    )
